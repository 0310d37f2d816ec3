"""``moiety demo`` and ``moiety simulate``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from harness.demo import DemoOptions, run_demo
from harness.results import summarise


def demo(
    out: Annotated[Path, typer.Option(help="Where report.html and summary.json go.")] = Path("demo-out"),
    data: Annotated[Path | None, typer.Option(help="PATH/heart_disease: the four real hospitals instead.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of the first study.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes splits, batches and, on this machine, every secret.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A few rounds and two seeds, to see that it works.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep every process's folder and log below OUT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON; progress goes to stderr.")] = False,
) -> None:
    """Two servers and five sites on this machine, from certificates to a report."""
    signal.signal(signal.SIGTERM, _end)
    options = DemoOptions(out=out, data=data, rounds=rounds, quick=quick, seed=seed, keep=keep)
    result = run_demo(options, Console(stderr=as_json))
    if as_json:
        typer.echo(summarise(result).model_dump_json())


def _end(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``, so that no process stays behind."""
    sys.exit(128 + number)
