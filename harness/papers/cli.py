"""``moiety lab results``: tables and plots of docs/results from their data files, and those from runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from client_agent.cli.tables import console as console_for
from harness.bench.report import charts_of, page_of
from harness.papers.pages import pages_in, render, write_data
from harness.papers.tables import FROM_RUNS
from host.output_files import rewrite
from protocol.errors import ConfigurationError, MoietyError

_BENCHMARKS: Final = "benchmarks"


def write_results(out: Path, only: str | None, runs: Path | None) -> None:
    """Fill the pages that are asked for; first make what ``runs`` has of them.

    Raises: ConfigurationError, where some could not be written; the others are
    """
    console = console_for(stderr=True)
    tell = partial(console.print, highlight=False)
    if runs is not None and not runs.is_dir():
        raise ConfigurationError(f"--runs {runs}: no such folder; give the one that holds a folder of runs per study")
    failed = []
    for page in _chosen(out, only):
        try:
            if page == _BENCHMARKS:
                _write_benchmarks(out.parent)
            else:
                if runs is not None:
                    _write_from_runs(page, runs, out / "data", tell)
                render(out / f"{page}.md", out / "data")
        except MoietyError as error:
            console.print(f"{page}: {error}", style="red", highlight=False, markup=False)
            failed.append(page)
        else:
            tell(f"written: {(out.parent if page == _BENCHMARKS else out) / page}.md")
    if failed:
        raise ConfigurationError(f"not written: {', '.join(failed)}, for the reasons above")


def _write_from_runs(page: str, runs: Path, data: Path, tell: Callable[[str], None]) -> None:
    found = FROM_RUNS[page](runs) if page in FROM_RUNS else ()
    made = {name: write_data(data, name, content) for name, content in found if content}  # no run, no plot
    if not made:
        tell(f"{page}: nothing of it comes from the runs in {runs}; its figures stay as they were measured")
    elif changed := [name for name, is_other in made.items() if is_other]:
        tell(f"{page}: other figures than before in {', '.join(changed)}; read the page's text beside them")


def _chosen(out: Path, only: str | None) -> tuple[str, ...]:
    pages = (*pages_in(out), *((_BENCHMARKS,) if (out.parent / _BENCHMARKS).is_dir() else ()))
    if not pages:
        raise ConfigurationError(f"{out}: no page with tables; their text is written by hand, in docs/results")
    asked = pages if only is None else tuple(only.split(","))
    if unknown := [name for name in asked if name not in pages]:
        raise ConfigurationError(f"--only: found {', '.join(unknown)}; the pages are {', '.join(pages)}")
    return asked


def _write_benchmarks(docs: Path) -> None:
    folder = docs / _BENCHMARKS
    rewrite(folder.with_suffix(".md"), page_of(folder))
    for name, chart in charts_of(folder).items():
        rewrite(folder / name, chart)
