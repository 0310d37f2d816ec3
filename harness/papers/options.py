"""Options of ``moiety lab results``; this module loads nothing that a run needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from host.output_files import writable_folder


@dataclass(frozen=True)
class ResultsOptions:
    """Make the tables and plots of docs/results, and runs that are missing.

    Stop it at any time: it goes on where it was.

    Example: moiety lab results --only titanic --jobs 2
    """

    out: Annotated[Path, typer.Option(callback=writable_folder, help="Where the pages go.")] = Path("docs/results")
    runs: Annotated[
        Path,
        typer.Option(callback=writable_folder, help="Where runs are kept; those that are there are not done again."),
    ] = Path("results-out")
    data: Annotated[Path | None, typer.Option(envvar="MOIETY_DATA", help="Folder of the public data files.")] = None
    only: Annotated[str | None, typer.Option(help="Pages by name, with commas; benchmarks: docs/benchmarks.md.")] = None
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once, one core each.")] = 1
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; a GPU makes all 28 MNIST settings.")] = "auto"
    engine: Annotated[
        Literal["processes", "ray"],
        typer.Option(help="processes of this machine, or tasks of a Ray cluster (extra scale)."),
    ] = "processes"
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster; without: one of this machine alone, --jobs CPUs large.")
    ] = None
    cpus_per_run: Annotated[float | None, typer.Option(help="What a run asks of the Ray cluster. [1]")] = None
    gpus_per_run: Annotated[float | None, typer.Option(help="Likewise; with GPUs all 28 MNIST settings. [0]")] = None
    download: Annotated[bool, typer.Option("--download", help="Fetch missing public data into the data folder.")] = (
        False
    )
    render_only: Annotated[
        bool, typer.Option("--render-only", help="Write the pages from their data files, without runs.")
    ] = False
