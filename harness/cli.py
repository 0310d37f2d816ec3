"""``moiety demo`` and ``moiety simulate``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from harness.demo import DemoOptions, run_demo
from harness.live import console_for, print_run
from harness.report import accuracy_text
from harness.results import summarise
from harness.simulate import Protection, SimulationOptions, parse_seeds, run_simulation


def demo(
    out: Annotated[Path, typer.Option(help="Where report.html and summary.json go.")] = Path("demo-out"),
    data: Annotated[Path | None, typer.Option(help="PATH/heart_disease: the four real hospitals instead.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of the first study.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes splits, batches and, on this machine, every secret.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A few rounds and two seeds, to see that it works.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep every process's folder and log below OUT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON; progress on stderr.")] = False,
) -> None:
    """Two servers and five sites on this machine, from certificates to a report."""
    signal.signal(signal.SIGTERM, _end)
    options = DemoOptions(out=out, data=data, rounds=rounds, quick=quick, seed=seed, keep=keep)
    result = run_demo(options, console_for(stderr=as_json))
    if as_json:
        typer.echo(summarise(result).model_dump_json())


def simulate(
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.TOML", help="What to study, as for 'study create'.")],
    data: Annotated[
        str, typer.Option(help="breast_cancer, digits, or a folder that holds one folder a site.")
    ] = "breast_cancer",
    requester: Annotated[str | None, typer.Option(help="The requester's folder, where --data is a folder.")] = None,
    seeds: Annotated[str, typer.Option(help="Whole numbers separated by commas.")] = "0",
    protection: Annotated[Protection, typer.Option(help="plain leaves shares and sketches out.")] = Protection.PLAIN,
    out: Annotated[Path | None, typer.Option(help="Folder for simulation.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """A study in one process, without HTTP, over several seeds."""
    console = console_for(stderr=as_json)
    options = SimulationOptions(study_file, data, requester, parse_seeds(seeds), protection)
    result = run_simulation(options, lambda history: print_run(console, history))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "simulation.json").write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(result.model_dump_json())
    else:
        mean, error = accuracy_text(result.accuracy)
        console.print(f"{result.study}, {result.protection}: test accuracy {mean}{error and f' +- {error}'}")


def _end(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``, so that no process stays behind."""
    sys.exit(128 + number)
