"""``moiety demo`` and ``moiety simulate``."""

from __future__ import annotations

import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from client_agent.settings import read_text
from harness.datasets.downloads import fetch_missing
from harness.datasets.public_data import data_folder
from harness.datasets.registry import source_of
from harness.demo.live import console_for, print_run
from harness.demo.report import accuracy_text
from harness.demo.results import summarise
from harness.demo.run import DemoOptions, run_demo
from harness.personal.case import is_personal_case, read_personal_case
from harness.personal.run_case import PersonalOptions, run_personal_case
from harness.personal.summary import summary_json, summary_table
from harness.simulation.case import is_case, read_case
from harness.simulation.case_run import CaseOptions, run_case
from harness.simulation.options import parse_names, parse_seeds
from harness.simulation.progress import CaseBar
from harness.simulation.run_one import Protection
from harness.simulation.simulate import SimulationOptions, run_simulation
from harness.simulation.summary import summarise_case, table_of, write_summary
from harness.training.device import Computing
from harness.training.energy import measured
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
    device: Annotated[str, typer.Option(help="A case: auto, cpu, cuda or cuda:N; plain local SGD only.")] = "auto",
    batched: Annotated[
        bool | None,
        typer.Option(
            "--batched/--one-by-one",
            help="A case: all sites' steps of a round in one call; by default on a GPU only.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """A study, or all runs of a case, in one process or several, without HTTP, over several seeds."""
    console = console_for(stderr=as_json)
    with _energy(energy, out):
        words = _Words(
            study_file, data, requester, seeds, protection, only, jobs, out, download, device, batched, as_json
        )
        text = read_text(study_file)
        if is_personal_case(text, str(study_file)):
            _compare(words, console)
        elif is_case(text, str(study_file)):
            _simulate_case(words, console)
        else:
            _simulate(words, console)


@dataclass(frozen=True)
class _Words:
    """What the command line of ``simulate`` says."""

    study_file: Path
    data: str | None
    requester: str | None
    seeds: str | None
    protection: Protection
    only: str | None
    jobs: int
    out: Path | None
    download: bool
    device: str
    batched: bool | None
    as_json: bool

    @property
    def folder(self) -> Path | None:
        return Path(self.data) if self.data else None

    @property
    def parsed_seeds(self) -> tuple[int, ...] | None:
        return parse_seeds(self.seeds) if self.seeds else None

    @property
    def variants(self) -> tuple[str, ...] | None:
        return parse_names(self.only, "--only") if self.only else None


def _simulate(words: _Words, console: Console) -> None:
    seeds = words.parsed_seeds or (0,)
    options = SimulationOptions(
        words.study_file, words.data or "breast_cancer", words.requester, seeds, words.protection
    )
    result = run_simulation(options, lambda history: print_run(console, history))
    if words.out is not None:
        words.out.mkdir(parents=True, exist_ok=True)
        (words.out / "simulation.json").write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    if words.as_json:
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


def _simulate_case(words: _Words, console: Console) -> None:
    if words.out is None:
        raise ConfigurationError("a case needs --out: the folder in which its runs are kept")
    options = CaseOptions(
        words.out,
        words.folder,
        words.parsed_seeds,
        words.variants,
        words.protection,
        words.jobs,
        computing=Computing.chosen(words.device, words.batched),
    )
    case = read_case(words.study_file)
    files = source_of(case.table.data).files
    if words.download and files:
        fetch_missing(files, data_folder(options.data), lambda text: console.print(text, highlight=False))
    with CaseBar(console) as bar:
        lines = run_case(case, options, bar.show)
    summary = summarise_case(lines)
    write_summary(summary, lines, words.out)
    if words.as_json:
        typer.echo(summary.model_dump_json())
    else:
        console.print(table_of(summary))


def _compare(words: _Words, console: Console) -> None:
    if words.out is None:
        raise ConfigurationError("a comparison of personal models needs --out: the folder in which its runs are kept")
    options = PersonalOptions(
        words.out,
        words.folder,
        words.parsed_seeds,
        words.variants or (),
        words.device,
        words.batched,
        words.protection,
    )
    case = read_personal_case(words.study_file)
    lines = run_personal_case(case, options, lambda text: console.print(text, highlight=False))
    if words.as_json:
        typer.echo(summary_json(lines))
    else:
        console.print(summary_table(lines))


def _end(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``, so that no process stays behind."""
    sys.exit(128 + number)
