"""``moiety results``: every table and plot of docs/results/."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from client_agent.cli.tables import console as console_for
from harness.papers.build import PAGES, PageSpec
from harness.papers.making import Making
from harness.simulation.workers.cluster import Engine, cluster_of
from host.placed_files import writable_folder
from host.subcommand import command
from protocol.errors import ConfigurationError, MoietyError


@dataclass(frozen=True)
class _Results:
    """Run what is missing and write the pages; it can be stopped at any time and goes on where it was."""

    out: Annotated[Path, typer.Option(callback=writable_folder, help="Where the pages go.")] = Path("docs/results")
    runs: Annotated[
        Path,
        typer.Option(callback=writable_folder, help="Where runs are kept; those that are there are not done again."),
    ] = Path("results-out")
    data: Annotated[Path | None, typer.Option(envvar="MOIETY_DATA", help="Folder of the public data files.")] = None
    only: Annotated[str | None, typer.Option(help="Pages by name, separated by commas.")] = None
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once, one core each.")] = 1
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; a GPU makes all 28 MNIST settings.")] = "auto"
    engine: Annotated[
        Engine, typer.Option(help="processes of this machine, or tasks of a Ray cluster (extra scale).")
    ] = Engine.PROCESSES
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster; without: one of this machine alone, --jobs CPUs large.")
    ] = None
    cpus_per_run: Annotated[float | None, typer.Option(help="What a run asks of the Ray cluster. [1]")] = None
    gpus_per_run: Annotated[float | None, typer.Option(help="Likewise; with GPUs all 28 MNIST settings. [0]")] = None
    download: Annotated[bool, typer.Option("--download", help="Fetch missing public data into the data folder.")] = (
        False
    )
    render_only: Annotated[bool, typer.Option("--render-only", help="Write pages from the runs that are there.")] = (
        False
    )


def _results(asked: _Results) -> None:
    console = console_for(stderr=True)

    def tell(text: str) -> None:
        console.print(text, highlight=False)

    cluster = cluster_of(asked.engine, asked.address, asked.jobs, asked.cpus_per_run, asked.gpus_per_run)
    making = Making(asked.runs, asked.data, asked.jobs, asked.device, tell, asked.download, cluster)
    chosen = _chosen(asked.only)
    failed = [spec.name for spec in chosen if not _made(spec, making, asked.out, asked.render_only, console)]
    if failed:
        raise ConfigurationError(
            f"not written: {', '.join(failed)}, for the reasons above; --render-only writes pages from whatever has run"
        )


results = command(_Results, _results)


def _made(spec: PageSpec, making: Making, out: Path, render_only: bool, console: Console) -> bool:
    """Whether the page was written: one whose runs cannot be made stays as it is, and the others go on."""
    try:
        if not render_only:
            spec.run_missing(making)
        making.tell(f"written: {spec.write_page(making.runs, out, making.data)}")
    except MoietyError as error:
        console.print(f"{spec.name}: {error}", style="red", highlight=False, markup=False)
        return False
    return True


def _chosen(only: str | None) -> tuple[PageSpec, ...]:
    if only is None:
        return PAGES
    by_name = {spec.name: spec for spec in PAGES}
    unknown = [name for name in only.split(",") if name not in by_name]
    if unknown:
        raise ConfigurationError(f"--only: found {', '.join(unknown)}; the pages are {', '.join(by_name)}")
    return tuple(by_name[name] for name in only.split(","))
