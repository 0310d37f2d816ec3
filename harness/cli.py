"""``moiety demo``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from client_agent.cli.tables import console as console_for
from harness.demo.results import summarise
from harness.demo.run import DemoOptions, run_demo
from host.output_files import writable_folder
from protocol.messages.purpose import USUAL_PROTECTION, StudyProtection


def demo(
    out: Annotated[Path, typer.Option(callback=writable_folder, help="Where report.html and summary.json go.")] = Path(
        "demo-out"
    ),
    data: Annotated[Path | None, typer.Option(help="PATH/heart_disease: the four real hospitals instead.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of the first study.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes splits, batches and, on this machine, every secret.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A few rounds and two seeds, to see that it works.")] = False,
    protection: Annotated[
        StudyProtection, typer.Option(help="ckks: server A sums ciphertexts instead (extra he); FedAvg and WFedAvg.")
    ] = USUAL_PROTECTION,
    keep: Annotated[bool, typer.Option("--keep", help="Keep every process's folder and log below OUT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON; progress on stderr.")] = False,
) -> None:
    """Two servers and five sites on this machine, from certificates to a report."""
    signal.signal(signal.SIGTERM, _end)
    options = DemoOptions(out=out, data=data, rounds=rounds, quick=quick, seed=seed, keep=keep, protection=protection)
    result = run_demo(options, console_for(stderr=as_json))
    if as_json:
        typer.echo(summarise(result).model_dump_json())


def _end(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``, so that no process stays behind."""
    sys.exit(128 + number)
