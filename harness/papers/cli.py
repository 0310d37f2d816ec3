"""``moiety results``: every table and plot of docs/results/."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.live import console_for
from harness.papers.build import PAGES, PageSpec, run_missing, write_page
from harness.simulation.case_run import CaseProgress
from protocol.errors import ConfigurationError


def results(
    out: Annotated[Path, typer.Option(help="Where the pages go.")] = Path("docs/results"),
    runs: Annotated[Path, typer.Option(help="Where runs are kept; those that are there are not done again.")] = Path(
        "results-out"
    ),
    data: Annotated[Path | None, typer.Option(envvar="MOIETY_DATA", help="Folder of the public data files.")] = None,
    only: Annotated[str | None, typer.Option(help="Pages by name, separated by commas.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once, one core each.")] = 1,
    render_only: Annotated[
        bool, typer.Option("--render-only", help="Write pages from the runs that are there.")
    ] = False,
) -> None:
    """Run what is missing and write the pages; it can be stopped at any time and goes on where it was."""
    console = console_for(stderr=True)

    def show(case: str, progress: CaseProgress) -> None:
        console.print(
            f"{case}: run {progress.runs_done} of {progress.runs}, round {progress.rounds_done} of {progress.rounds}"
        )

    for spec in _chosen(only):
        if not render_only:
            run_missing(spec, runs, data, jobs, show)
        console.print(f"written: {write_page(spec, runs, out, data)}")


def _chosen(only: str | None) -> tuple[PageSpec, ...]:
    if only is None:
        return PAGES
    by_name = {spec.name: spec for spec in PAGES}
    unknown = [name for name in only.split(",") if name not in by_name]
    if unknown:
        raise ConfigurationError(f"--only: found {', '.join(unknown)}; the pages are {', '.join(by_name)}")
    return tuple(by_name[name] for name in only.split(","))
