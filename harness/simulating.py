"""``moiety simulate``: what was asked for, and the way from there to runs and to what is printed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from harness.datasets.downloads import fetch_missing
from harness.datasets.public_data import data_folder
from harness.datasets.registry import source_of
from harness.demo.live import console_for, print_run
from harness.demo.report import accuracy_text
from harness.personal.case import PersonalCase, personal_case_of
from harness.personal.run_case import PersonalOptions, run_personal_case
from harness.personal.summary import summary_json, summary_table
from harness.simulation.case import Case, case_of
from harness.simulation.case_run import CaseOptions, run_case
from harness.simulation.files.merging import merge_results
from harness.simulation.files.study_files import read_study_file
from harness.simulation.options import ALL_RUNS, command, parse_names, parse_seeds, parse_shard
from harness.simulation.progress import CaseBar
from harness.simulation.run_one import Protection
from harness.simulation.simulate import SimulationOptions, run_simulation
from harness.simulation.summary import summarise_case, table_of, write_summary
from harness.tracking.trackers import log_all, tracker_of
from harness.training.device import Computing
from harness.training.energy import measured_into
from host.extensions import load_plugins
from protocol.errors import ConfigurationError

SIMULATED: Final = Path("simulated")
"""Where a case keeps its runs if nobody says otherwise."""


@dataclass(frozen=True)
class Asked:
    """A study, or all runs of a case, in one process or several, without HTTP, over several seeds."""

    study_file: Annotated[
        Path,
        typer.Argument(metavar="STUDY.TOML", help="A study as for 'study create', or a case."),
    ]
    data: Annotated[
        str | None,
        typer.Option(
            help="A study: breast_cancer (the default), digits, or a folder that holds one folder per site. A case: "
            "the folder with the public data sets (or MOIETY_DATA)."
        ),
    ] = None
    requester: Annotated[str | None, typer.Option(help="A study: the requester's folder, with a folder.")] = None
    seeds: Annotated[str | None, typer.Option(help="Whole numbers and ranges, such as 0-9,12; the case's, or 0.")] = (
        None
    )
    requesters: Annotated[
        str | None, typer.Option(help="A case: sites that are the requester in turn, separated by commas, or each.")
    ] = None
    shard: Annotated[
        str | None, typer.Option(help="A case: i/n, only the i-th of n parts of all runs; moiety merge joins them.")
    ] = None
    protection: Annotated[
        Protection, typer.Option(help="plain: in the open. secure: shares and sketches. ckks: ciphertexts (extra he).")
    ] = Protection.PLAIN
    only: Annotated[str | None, typer.Option(help="A case: names of variants separated by commas.")] = None
    jobs: Annotated[int, typer.Option(min=1, help="A case: so many runs at a time, one thread each.")] = 1
    site_plugin: Annotated[
        Path | None, typer.Option(help="A study: the Python file that sites would have as their plug-in.")
    ] = None
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; a case goes on where it stopped. [simulated/<case>]")
    ] = None
    download: Annotated[
        bool, typer.Option("--download", help="A case: fetch missing public files into the data folder first.")
    ] = False
    energy: Annotated[
        str | None, typer.Option(help="Three-letter country: estimate energy and CO2 into OUT/energy.json.")
    ] = None
    device: Annotated[str, typer.Option(help="A case: auto, cpu, cuda or cuda:N; plain local SGD only.")] = "auto"
    batched: Annotated[
        bool | None,
        typer.Option(
            "--batched/--one-by-one",
            help="A case: all sites' steps of a round in one call; by default on a GPU only.",
        ),
    ] = None
    plugin: Annotated[
        list[Path] | None,
        typer.Option(help="A case: a Python file with RULES, DATASETS, MODELS, METRICS of your own; may be repeated."),
    ] = None
    track: Annotated[
        str | None, typer.Option(help="A case: tensorboard, mlflow or both, separated by commas (extras); into OUT.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False

    @property
    def folder(self) -> Path | None:
        return Path(self.data) if self.data else None

    @property
    def parsed_seeds(self) -> tuple[int, ...] | None:
        return parse_seeds(self.seeds) if self.seeds else None

    @property
    def variants(self) -> tuple[str, ...] | None:
        return parse_names(self.only, "--only") if self.only else None

    def case_options(self, out: Path) -> CaseOptions:
        """Raises: ConfigurationError"""
        return CaseOptions(
            out,
            self.folder,
            self.parsed_seeds,
            self.variants,
            self.protection,
            self.jobs,
            computing=Computing.chosen(self.device, self.batched),
            requesters=parse_names(self.requesters, "--requesters") if self.requesters else None,
            shard=parse_shard(self.shard) if self.shard else ALL_RUNS,
        )

    def out_for(self, what: str) -> Path:
        """Raises: ConfigurationError where no folder was given"""
        if self.out is None:
            raise ConfigurationError(f"{what} needs --out: the folder in which its runs are kept")
        return self.out


def _run(asked: Asked) -> None:
    """A study's runs, a case's or a comparison's, by what the file holds. Raises: ConfigurationError"""
    load_plugins(asked.plugin or ())
    with measured_into(asked.out, asked.energy):
        console, file = console_for(stderr=asked.as_json), read_study_file(asked.study_file)
        if file.is_personal_case:
            _compare(personal_case_of(file), asked, console)
        elif file.is_case:
            _simulate_case(case_of(file), asked, console)
        else:
            _simulate(asked, console)


simulate = command(Asked, _run)


def _simulate(asked: Asked, console: Console) -> None:
    seeds = asked.parsed_seeds or (0,)
    options = SimulationOptions(
        asked.study_file,
        asked.data or "breast_cancer",
        asked.requester,
        seeds,
        asked.protection,
        site_plugin=asked.site_plugin,
    )
    result = run_simulation(options, lambda history: print_run(console, history))
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "simulation.json").write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    if asked.as_json:
        typer.echo(result.model_dump_json())
    else:
        mean, error = accuracy_text(result.accuracy)
        metric = result.metric.replace("_", " ")
        console.print(f"{result.study}, {result.protection}: test {metric} {mean}{error and f' +- {error}'}")


def _simulate_case(case: Case, asked: Asked, console: Console) -> None:
    options = asked.case_options(asked.out or SIMULATED / case.name)
    trackers = [tracker_of(name, options.out) for name in parse_names(asked.track, "--track")] if asked.track else []
    files = source_of(case.table.data).files
    if asked.download and files:
        fetch_missing(files, data_folder(options.data), lambda text: console.print(text, highlight=False))
    with CaseBar(console) as bar:
        lines = run_case(case, options, bar.show)
    summary = summarise_case(lines)
    write_summary(summary, lines, options.out)
    log_all(trackers, lines)
    if asked.as_json:
        typer.echo(summary.model_dump_json())
    else:
        console.print(table_of(summary))
        console.print(f"every run is in {options.out}", highlight=False)


def _compare(case: PersonalCase, asked: Asked, console: Console) -> None:
    options = PersonalOptions(
        asked.out_for("a comparison of personal models"),
        asked.folder,
        asked.parsed_seeds,
        asked.variants or (),
        asked.device,
        asked.batched,
        asked.protection,
    )
    lines = run_personal_case(case, options, lambda text: console.print(text, highlight=False))
    if asked.as_json:
        typer.echo(summary_json(lines))
    else:
        console.print(summary_table(lines))


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
