"""``moiety demo``, ``lab faults`` and ``lab results``: what a command needs is imported when it runs."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from host.output_files import writable, writable_folder
from protocol.messages.purpose import USUAL_PROTECTION, StudyProtection


def end_on_sigterm() -> None:
    """Leave through every ``finally``, so that no process stays behind."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


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
    """Run two servers and five sites on this machine, and report.

    From certificates to a page with what was learned.

    Example: moiety demo --quick --out demo-out
    """
    from client_agent.cli.tables import console
    from harness.demo.results import summary_json
    from harness.demo.run import DemoOptions, run_demo

    end_on_sigterm()
    options = DemoOptions(out=out, data=data, rounds=rounds, quick=quick, seed=seed, keep=keep, protection=protection)
    result = run_demo(options, console(stderr=as_json))
    if as_json:
        typer.echo(summary_json(result))


def faults(
    seeds: Annotated[str, typer.Option(help="A seed, or a range of them: 0-99.")] = "0-9",
    jobs: Annotated[int, typer.Option(min=1, max=256, help="How many processes.")] = 1,
    out: Annotated[Path | None, typer.Option(callback=writable, help="File for what was found, as JSON.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on after the last seed that is in the file of --out.")] = False,
    replay: Annotated[Path | None, typer.Option(help="Run this schedule of faults, which a failure left.")] = None,
    shrink: Annotated[bool, typer.Option(help="Leave out of a failing schedule what it does not need.")] = True,
    servers: Annotated[bool, typer.Option(help="Both servers alone, with scripted sites.")] = False,
) -> None:
    """Run whole studies under seeded faults, and check what must hold.

    A troubled network, parties that die, full disks, clocks that jump. Schedules of seeds that fail lie in faults-out,
    beside the JSON where there is one.

    Example: moiety lab faults --seeds 0-99 --jobs 2
    """
    from harness.faults.cli import run_faults

    if not run_faults(seeds, jobs, out, resume, replay, shrink, servers):
        raise typer.Exit(1)


def results(
    out: Annotated[
        Path, typer.Option(callback=writable_folder, help="The folder of the pages, beside benchmarks.")
    ] = Path("docs/results"),
    only: Annotated[str | None, typer.Option(help="Pages by name, separated by commas.")] = None,
) -> None:
    """Write the pages of docs/results and docs/benchmarks.md from data files.

    Example: moiety lab results --only titanic
    """
    from harness.papers.pages import write_results

    write_results(out, only)
