"""``moiety bench load``, ``waiting`` and ``endurance``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from harness.bench.results import write_result
from host.placed_files import writable, writable_folder

JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", callback=writable, help="Write the figures there.")
]
Folder = Annotated[
    Path | None, typer.Option(callback=writable_folder, help="Where the processes keep their files while it runs.")
]
Processes = Annotated[int, typer.Option(min=1, help="Of agents; the requester's has one of its own.")]


def load(
    sites: Annotated[int, typer.Option(min=3, help="Contributors besides the requester.")] = 20,
    parameters: Annotated[int, typer.Option(min=1, help="D, the number of shared parameters.")] = 10**5,
    rounds: Annotated[int, typer.Option(min=1)] = 20,
    processes: Processes = 2,
    json_file: JsonFile = None,
    folder: Folder = None,
) -> None:
    """Many sites' agents, without training, held for the rounds of one study: errors, times, what servers need."""
    from harness.bench.load.run import benchmark_load, load_text

    signal.signal(signal.SIGTERM, _end)
    result = benchmark_load(parameters, sites, rounds, processes, typer.echo, folder)
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(load_text(result))


def waiting(
    sites: Annotated[int, typer.Option(min=3, help="That have no study.")] = 1000,
    seconds: Annotated[float, typer.Option(min=10, help="In which everything is counted.")] = 180.0,
    processes: Processes = 4,
    json_file: JsonFile = None,
    folder: Folder = None,
) -> None:
    """Sites without a study, which ask for news: what they cost in an hour, scaled from minutes."""
    from harness.bench.load.waiting import benchmark_waiting, waiting_text

    signal.signal(signal.SIGTERM, _end)
    result = benchmark_waiting(sites, seconds, processes, typer.echo, folder)
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(waiting_text(result))


def endurance(
    sites: Annotated[int, typer.Option(min=3, help="Contributors besides the requester.")] = 3,
    parameters: Annotated[int, typer.Option(min=1, help="D, the number of shared parameters.")] = 100,
    rounds: Annotated[int, typer.Option(min=3)] = 500,
    within_s: Annotated[float, typer.Option(min=10, help="End it then, with the rounds that there are.")] = 7200.0,
    json_file: JsonFile = None,
    folder: Folder = None,
) -> None:
    """One small study of many rounds: whether memory, disk, open files, tables or times grow with them."""
    from harness.bench.load.endurance import benchmark_endurance, endurance_text

    signal.signal(signal.SIGTERM, _end)
    result = benchmark_endurance(parameters, sites, rounds, within_s, typer.echo, folder)
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(endurance_text(result))


def _end(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``, so that no process stays behind."""
    sys.exit(128 + number)
