"""``moiety bench load``."""

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
    """Many sites' agents, without training, held for the rounds of one study: errors, times, what servers need, and
    what grows from round to round.
    """
    from harness.bench.load.run import benchmark_load, load_text

    signal.signal(signal.SIGTERM, _end)
    result = benchmark_load(parameters, sites, rounds, processes, typer.echo, folder)
    if json_file is not None:
        write_result(result, json_file)
    typer.echo(load_text(result))


def _end(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``, so that no process stays behind."""
    sys.exit(128 + number)
