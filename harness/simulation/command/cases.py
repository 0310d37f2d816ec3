"""Studies and cases as ``moiety simulate`` runs them, and what is printed of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from client_agent.cli.tables import console as console_for
from client_agent.scoring.score import words_of
from harness.datasets.public_data import data_folder, fetch_missing
from harness.datasets.registry import source_of
from harness.demo.live import print_run
from harness.demo.report import accuracy_text
from harness.simulation.case import Case
from harness.simulation.case_run import CaseOptions, run_case
from harness.simulation.command.asked import Asked
from harness.simulation.command.merging import merge_results
from harness.simulation.progress import CaseBar
from harness.simulation.runs import RunLine
from harness.simulation.simulate import SimulationOptions, run_simulation
from harness.simulation.summary import summarise_case, table_of, write_summary
from host.placed_files import rewrite, writable


def simulate_study(asked: Asked, console: Console) -> None:
    """A study over its seeds, into ``simulation.json`` and a line. Raises: ConfigurationError"""
    options = SimulationOptions(
        asked.study_file,
        asked.data or "breast_cancer",
        asked.requester,
        asked.parsed_seeds,
        asked.protection,
        site_plugin=asked.site_plugin,
        save_model=asked.save_model,
    )
    place = writable(None if asked.out is None else asked.out / "simulation.json")
    result = run_simulation(options, lambda history: print_run(console, history))
    if place is not None:
        rewrite(place, result.model_dump_json(indent=2) + "\n")
    if asked.as_json:
        typer.echo(result.model_dump_json())
    else:
        mean, error = accuracy_text(result.accuracy)
        metric = words_of(result.metric)
        console.print(f"{result.study}, {result.protection}: test {metric} {mean}{error and f' +- {error}'}")


def simulate_case(
    case: Case, options: CaseOptions, asked: Asked, console: Console, log: Callable[[Sequence[RunLine]], None]
) -> None:
    """All runs of a case, into its folder and a table; ``log`` gets them all. Raises: ConfigurationError"""
    files = source_of(case.table.data).files
    if asked.download and files:
        fetch_missing(files, data_folder(options.data), lambda text: console.print(text, highlight=False))
    with CaseBar(console) as bar:
        lines = run_case(case, options, bar.show)
    summary = summarise_case(lines)
    write_summary(summary, lines, options.out)
    log(lines)
    if asked.as_json:
        typer.echo(summary.model_dump_json())
    else:
        console.print(table_of(summary))
        console.print(f"every run is in {options.out}", highlight=False)


def merge(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    folders: Annotated[list[Path], typer.Argument(metavar="IN...", help="Folders of one case's runs.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Join the runs of several folders of one case, such as shards, into a new one."""
    lines = merge_results(folders, out)
    summary = summarise_case(lines)
    write_summary(summary, lines, out)
    if as_json:
        typer.echo(summary.model_dump_json())
    else:
        console_for(stderr=False).print(table_of(summary))
