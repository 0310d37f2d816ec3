"""Results as pandas frames: a row per run, a row per round, or a row per site and round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
from matplotlib.figure import Figure

from harness.simulate.run_line import RunLine, Values
from harness.simulate.store import RESULTS
from harness.simulate.store import Results as ResultFolder
from harness.simulate.summary import CaseSummary, SummaryRow, metric_figure, remarks_on, summarise_case
from protocol.errors import ConfigurationError
from protocol.text import counted

Row = dict[str, Any]
BY_ROUND: Final = tuple(name for name, field in RunLine.model_fields.items() if field.annotation == Values)
"""Every list of a line that has one number per round."""
BY_SITE: Final = ("alpha", "weight", "distance", "norm", "inner_product")
_OF_RUN: Final = (
    "case", "variant", "requester", "seed", "rule", "protection", "end", "reason", "released_rounds", "seconds",
    "study_digest", "data_digest", "code_digest",
)  # fmt: skip
_KEY: Final = ("variant", "requester", "seed")


@dataclass(frozen=True, repr=False)
class Results:
    """Finished runs of one case. What is not a number is missing in a frame (NaN)."""

    lines: tuple[RunLine, ...]

    def __repr__(self) -> str:
        cases = ", ".join(dict.fromkeys(line.case for line in self.lines)) or "nothing"
        runs = counted(len(self.lines), "run")
        return f"<Results of {cases}: {runs}; table(), plot(), runs(), rounds() and sites() show them>"

    def table(self) -> pd.DataFrame:
        """One row per variant and requester, over its seeds: the means of the case's metric and of what else was
        followed on the test part after the last round, with their standard errors, and what a reader must know.

        Raises: ConfigurationError without a run
        """
        found = self.summary()
        return pd.DataFrame([_summed(row, found.judged_by.value) for row in found.rows])

    def plot(self) -> Figure:
        """The case's metric over the rounds: a panel per requester, a curve per variant with a band of one standard
        error. ``plot().savefig("curves.png")`` keeps it.

        Raises: ConfigurationError without a run
        """
        self.summary()
        return metric_figure(self.lines)

    def runs(self) -> pd.DataFrame:
        """One row per run: what it was, its tuned settings, how it ended, and every measure after its last round."""
        return pd.DataFrame([_run(line) for line in self.lines])

    def rounds(self) -> pd.DataFrame:
        """One row per run and round, counted from 1."""
        return pd.DataFrame([row for line in self.lines for row in _rounds(line)])

    def sites(self) -> pd.DataFrame:
        """One row per run, round and contributor: whether it took part, its weights, and what was opened about it."""
        return pd.DataFrame([row for line in self.lines for row in _sites(line)])

    def summary(self) -> CaseSummary:
        """Means and standard errors over seeds, as in ``summary.json``. Raises: ConfigurationError without a run"""
        if not self.lines:
            raise ConfigurationError("there is no finished run to summarise")
        return summarise_case(self.lines)


def load_results(*folders: str | Path) -> Results:
    """The finished runs in folders of ``moiety simulate`` or of ``simulate``, those of each in their order.

    Raises: ConfigurationError for a folder without results, and for folders that are not of one case and one code
    """
    paths = [Path(folder) for folder in folders]
    for path in paths:
        if not (path / RESULTS).is_file():
            raise ConfigurationError(f"{path} holds no {RESULTS}: give the folder that was --out of a case")
    lines = tuple(line for path in paths for line in ResultFolder(path).lines())
    if len({(line.case, line.protection, line.code_digest) for line in lines}) > 1:
        raise ConfigurationError(
            "these folders hold runs of two cases, two protections or two versions of the code, which are not mixed in "
            "one table: load them one by one"
        )
    return Results(lines)


def _summed(row: SummaryRow, metric: str) -> Row:
    found: Row = {"variant": row.variant, "requester": row.requester or "mean"}
    for name, figure in {metric: row.last_round, **row.scores}.items():
        found |= {name: figure.mean, f"{name}_se": figure.standard_error}
    return {**found, "runs": row.runs, "released_rounds": row.released_rounds, "remarks": ", ".join(remarks_on(row))}


def _key(line: RunLine) -> Row:
    return {name: getattr(line, name) for name in _KEY}


def by_round(line: RunLine) -> dict[str, Values]:
    """Every list of the line with one number per round, other metrics among them as ``test_`` and their name."""
    named = {name: values for name in BY_ROUND if (values := getattr(line, name))}
    parts = (("test", line.test_metrics), ("validation", line.validation_metrics))
    return {f"{part}_{name}": values for part, found in parts for name, values in found.items()} | named


def _run(line: RunLine) -> Row:
    last = {name: values[-1] for name, values in by_round(line).items()}
    return {name: getattr(line, name) for name in _OF_RUN} | dict(line.settings) | last


def _rounds(line: RunLine) -> Iterator[Row]:
    series = by_round(line)
    for place, kind in enumerate(line.kind):
        numbers = {name: values[place] for name, values in series.items()}
        yield _key(line) | {"round": place + 1, "kind": kind, "contributors": len(line.took_part[place])} | numbers


def _sites(line: RunLine) -> Iterator[Row]:
    by_site: dict[str, dict[str, Values]] = {name: getattr(line, name) for name in BY_SITE}
    names = dict.fromkeys(_names(by_site.values()) + [name for names in line.took_part for name in names])
    for place in range(len(line.kind)):
        for site in names:
            opened = {name: values[site][place] if site in values else None for name, values in by_site.items()}
            yield _key(line) | {"round": place + 1, "site": site, "took_part": site in line.took_part[place]} | opened


def _names(series: Iterable[dict[str, Values]]) -> list[str]:
    return [name for values in series for name in values]
