"""``moiety lab results``: runs, then docs/results/data, then the tables and plots of docs/results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from client_agent.cli.tables import console as console_for
from harness.bench.report import charts_of, page_of
from harness.papers import attacked, simulated, soak
from harness.papers.options import ResultsOptions
from harness.papers.pages import render, write_data
from harness.papers.recipes import Making, run_missing
from harness.papers.simulated import Found
from harness.simulate.workers import Engine, cluster_of
from host.output_files import rewrite
from protocol.errors import ConfigurationError, MoietyError

PAGES: Final[Mapping[str, Callable[[Path, Path | None], Found]]] = {
    "titanic": simulated.titanic,
    "heart_disease": simulated.heart_disease,
    "survival": simulated.survival,
    "regression": simulated.regression,
    "har_strategies": simulated.har_strategies,
    "har_ifedavg": simulated.har_ifedavg,
    "mnist": simulated.mnist,
    "differential_privacy": simulated.differential_privacy,
    "privacy": attacked.privacy,
    "sums": attacked.sums,
    "reliability": soak.reliability,
    "leak": attacked.leak,
    "robustness": attacked.robustness,
    "does_it_pay": simulated.does_it_pay,
    "clinicians": simulated.clinicians,
}
"""Tables and plots that the runs of a page come to."""
BENCHMARKS: Final = "benchmarks"
"""The page that has no runs: it is made of the JSON files in its folder, and only where it is named."""


def write_results(asked: ResultsOptions) -> None:
    """Write the pages that are asked for. Raises: ConfigurationError, where some could not be made"""
    console = console_for(stderr=True)

    def tell(text: str) -> None:
        console.print(text, highlight=False)

    cluster = cluster_of(Engine(asked.engine), asked.address, asked.jobs, asked.cpus_per_run, asked.gpus_per_run)
    making = Making(asked.runs, asked.data, asked.jobs, asked.device, tell, asked.download, cluster)
    failed = []
    for page in _chosen(asked.only):
        try:
            if page == BENCHMARKS:
                tell(f"written: {_write_benchmarks(asked.out.parent)}")
                continue
            if not asked.render_only:
                write_from_runs(page, making, asked.out)
            render(asked.out / f"{page}.md", asked.out / "data")
        except MoietyError as error:  # a page whose runs cannot be made stays as it is, and the others go on
            console.print(f"{page}: {error}", style="red", highlight=False, markup=False)
            failed.append(page)
        else:
            tell(f"written: {asked.out / page}.md")
    if failed:
        raise ConfigurationError(
            f"not written: {', '.join(failed)}, for the reasons above; --render-only writes pages from their data files"
        )


def write_from_runs(page: str, making: Making, out: Path) -> None:
    """Make the runs that are missing, then every table and plot of the page. Raises: ConfigurationError"""
    run_missing(page, making)
    changed = [
        name
        for name, content in tuple(PAGES[page](making.runs, making.data))
        if write_data(out / "data", name, content)
    ]
    if changed:
        making.tell(f"{page}: other figures than before in {', '.join(changed)}; read the page's text beside them")


def _write_benchmarks(docs: Path) -> Path:
    """Write the page of all figures that ``moiety lab bench`` kept, and its charts. Raises: ConfigurationError"""
    results, page = docs / BENCHMARKS, docs / f"{BENCHMARKS}.md"
    rewrite(page, page_of(results))
    for name, chart in charts_of(results).items():
        rewrite(results / name, chart)
    return page


def _chosen(only: str | None) -> tuple[str, ...]:
    if only is None:
        return tuple(PAGES)
    pages = (*PAGES, BENCHMARKS)
    unknown = [name for name in only.split(",") if name not in pages]
    if unknown:
        raise ConfigurationError(f"--only: found {', '.join(unknown)}; the pages are {', '.join(pages)}")
    return tuple(only.split(","))
