"""``moiety results``: every table and plot of docs/results/."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.live import console_for
from harness.papers.build import PAGES, Making, PageSpec
from protocol.errors import ConfigurationError


def results(
    out: Annotated[Path, typer.Option(help="Where the pages go.")] = Path("docs/results"),
    runs: Annotated[Path, typer.Option(help="Where runs are kept; those that are there are not done again.")] = Path(
        "results-out"
    ),
    data: Annotated[Path | None, typer.Option(envvar="MOIETY_DATA", help="Folder of the public data files.")] = None,
    only: Annotated[str | None, typer.Option(help="Pages by name, separated by commas.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once, one core each.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; a GPU makes all 28 MNIST settings.")] = "auto",
    render_only: Annotated[
        bool, typer.Option("--render-only", help="Write pages from the runs that are there.")
    ] = False,
) -> None:
    """Run what is missing and write the pages; it can be stopped at any time and goes on where it was."""
    console = console_for(stderr=True)

    def tell(text: str) -> None:
        console.print(text, highlight=False)

    for spec in _chosen(only):
        if not render_only:
            spec.run_missing(Making(runs, data, jobs, device, tell))
        tell(f"written: {spec.write_page(runs, out, data)}")


def _chosen(only: str | None) -> tuple[PageSpec, ...]:
    if only is None:
        return PAGES
    by_name = {spec.name: spec for spec in PAGES}
    unknown = [name for name in only.split(",") if name not in by_name]
    if unknown:
        raise ConfigurationError(f"--only: found {', '.join(unknown)}; the pages are {', '.join(by_name)}")
    return tuple(by_name[name] for name in only.split(","))
