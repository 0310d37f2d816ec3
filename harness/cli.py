"""``moiety demo`` and ``moiety simulate``."""

from __future__ import annotations

import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from client_agent.settings import read_text
from harness.datasets.downloads import fetch_missing
from harness.datasets.public_data import data_folder
from harness.datasets.registry import source_of
from harness.demo import DemoOptions, run_demo
from harness.energy import measured
from harness.live import console_for, print_run
from harness.personal.case import is_personal_case, read_personal_case
from harness.personal.run_case import PersonalOptions, run_personal_case
from harness.personal.summary import summary_json, summary_table
from harness.report import accuracy_text
from harness.results import summarise
from harness.simulate import SimulationOptions, run_simulation
from harness.simulation.case import is_case, read_case
from harness.simulation.case_run import CaseOptions, run_case
from harness.simulation.options import parse_names, parse_seeds
from harness.simulation.progress import CaseBar
from harness.simulation.run_one import Protection
from harness.simulation.summary import summarise_case, table_of, write_summary
from protocol.errors import ConfigurationError
from protocol.wire.messages import StudyProtection


def demo(
    out: Annotated[Path, typer.Option(help="Where report.html and summary.json go.")] = Path("demo-out"),
    data: Annotated[Path | None, typer.Option(help="PATH/heart_disease: the four real hospitals instead.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of the first study.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes splits, batches and, on this machine, every secret.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A few rounds and two seeds, to see that it works.")] = False,
    protection: Annotated[
        StudyProtection, typer.Option(help="ckks: server A sums ciphertexts instead (extra he); FedAvg and WFedAvg.")
    ] = StudyProtection.SHARES,
    keep: Annotated[bool, typer.Option("--keep", help="Keep every process's folder and log below OUT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON; progress on stderr.")] = False,
) -> None:
    """Two servers and five sites on this machine, from certificates to a report."""
    signal.signal(signal.SIGTERM, _end)
    options = DemoOptions(out=out, data=data, rounds=rounds, quick=quick, seed=seed, keep=keep, protection=protection)
    result = run_demo(options, console_for(stderr=as_json))
    if as_json:
        typer.echo(summarise(result).model_dump_json())


def simulate(
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.TOML", help="A study as for 'study create', or a case.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="A study: breast_cancer (the default), digits, or a folder that holds one folder a site. A case: the "
            "folder with the public data sets (or MOIETY_DATA)."
        ),
    ] = None,
    requester: Annotated[str | None, typer.Option(help="A study: the requester's folder, with a folder.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Whole numbers separated by commas; the case's, or 0.")] = None,
    protection: Annotated[
        Protection, typer.Option(help="plain: in the open. secure: shares and sketches. ckks: ciphertexts (extra he).")
    ] = Protection.PLAIN,
    only: Annotated[str | None, typer.Option(help="A case: names of variants separated by commas.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="A case: so many runs at a time, one thread each.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; a case goes on where it stopped.")] = None,
    download: Annotated[
        bool, typer.Option("--download", help="A case: fetch missing public files into the data folder first.")
    ] = False,
    energy: Annotated[
        str | None, typer.Option(help="Three-letter country: estimate energy and CO2 into OUT/energy.json.")
    ] = None,
    device: Annotated[str, typer.Option(help="A comparison of personal models: auto, cpu, cuda or cuda:N.")] = "auto",
    batched: Annotated[
        bool | None,
        typer.Option(
            "--batched/--one-by-one",
            help="A comparison of personal models: all sites' steps in one call; by default on a GPU only.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """A study, or all runs of a case, in one process or several, without HTTP, over several seeds."""
    console = console_for(stderr=as_json)
    with _energy(energy, out):
        if is_personal_case(read_text(study_file), str(study_file)):
            _compare(study_file, data, seeds, protection, only, out, device, batched, console, as_json)
            return
        _simulate(study_file, data, requester, seeds, protection, only, jobs, out, download, console, as_json)


def _simulate(
    study_file: Path,
    data: str | None,
    requester: str | None,
    seeds: str | None,
    protection: Protection,
    only: str | None,
    jobs: int,
    out: Path | None,
    download: bool,
    console: Console,
    as_json: bool,
) -> None:
    if is_case(read_text(study_file), str(study_file)):
        _simulate_case(study_file, data, seeds, protection, only, jobs, out, download, console, as_json)
        return
    options = SimulationOptions(study_file, data or "breast_cancer", requester, parse_seeds(seeds or "0"), protection)
    result = run_simulation(options, lambda history: print_run(console, history))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "simulation.json").write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(result.model_dump_json())
    else:
        mean, error = accuracy_text(result.accuracy)
        console.print(f"{result.study}, {result.protection}: test accuracy {mean}{error and f' +- {error}'}")


def _energy(country: str | None, out: Path | None) -> AbstractContextManager[None]:
    if country is None:
        return nullcontext()
    if out is None:
        raise ConfigurationError("--energy needs --out: the folder that energy.json goes to")
    return measured(country, out)


def _simulate_case(
    study_file: Path,
    data: str | None,
    seeds: str | None,
    protection: Protection,
    only: str | None,
    jobs: int,
    out: Path | None,
    download: bool,
    console: Console,
    as_json: bool,
) -> None:
    if out is None:
        raise ConfigurationError("a case needs --out: the folder in which its runs are kept")
    options = CaseOptions(
        out,
        Path(data) if data else None,
        parse_seeds(seeds) if seeds else None,
        parse_names(only, "--only") if only else None,
        protection,
        jobs,
    )
    case = read_case(study_file)
    files = source_of(case.table.data).files
    if download and files:
        fetch_missing(files, data_folder(options.data), lambda text: console.print(text, highlight=False))
    with CaseBar(console) as bar:
        lines = run_case(case, options, bar.show)
    summary = summarise_case(lines)
    write_summary(summary, lines, out)
    if as_json:
        typer.echo(summary.model_dump_json())
    else:
        console.print(table_of(summary))


def _compare(
    case_file: Path,
    data: str | None,
    seeds: str | None,
    protection: Protection,
    only: str | None,
    out: Path | None,
    device: str,
    batched: bool | None,
    console: Console,
    as_json: bool,
) -> None:
    if out is None:
        raise ConfigurationError("a comparison of personal models needs --out: the folder in which its runs are kept")
    if protection is not Protection.PLAIN:
        raise ConfigurationError(
            "a comparison of personal models runs with --protection plain; for a protected run give a study file with "
            "key 'model.personal'"
        )
    options = PersonalOptions(
        out,
        Path(data) if data else None,
        parse_seeds(seeds) if seeds else None,
        parse_names(only, "--only") if only else (),
        device,
        batched,
    )
    lines = run_personal_case(read_personal_case(case_file), options, lambda text: console.print(text, highlight=False))
    if as_json:
        typer.echo(summary_json(lines))
    else:
        console.print(summary_table(lines))


def _end(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``, so that no process stays behind."""
    sys.exit(128 + number)
