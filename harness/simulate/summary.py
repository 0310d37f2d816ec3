"""Summarise the runs of a case: ``summary.json``, a table, and curves with bands of one standard error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Final

from matplotlib.figure import Figure as PlotFigure
from rich.table import Table

from client_agent.learning.scores import MetricName, words_of
from harness.engine.history import RunEnd, mean_and_error
from harness.simulate.charts import DISTANCES, curve_rows, curved, drawn, of_variant, over_rounds_rows, similarity_rows
from harness.simulate.run_line import RunLine, Values
from host.frozen import Frozen
from host.output_files import rewrite
from protocol.text import counted

COMPLETED: Final = RunEnd.COMPLETED.value
_FAILED: Final = "failed"
MOST_NAMED_SITES: Final = 9
"""With more contributors, the weights are drawn as their mean: so many lines cannot be told apart."""


class Figure(Frozen):
    """A mean over seeds and its standard error; None where a run failed, or there is one seed only."""

    mean: float | None
    standard_error: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure:
        found, error = mean_and_error(values)
        return cls(mean=None if math.isnan(found) else found, standard_error=error)

    def __str__(self) -> str:
        if self.mean is None:
            return "failed"
        return f"{self.mean:.4f}" + ("" if self.standard_error is None else f" ± {self.standard_error:.4f}")


class SummaryRow(Frozen):
    """One variant at one requester, or (``requester`` None) averaged over requesters within each seed.

    ``last_round`` is the metric that runs are judged by, ``scores`` what else was followed, both on the test part after
    the last round, without what a requester has not; ``chosen_round`` that of the round that is best on validation
    data, None where a run has none.
    ``largest_clipped_share`` is over rounds and runs. ``ends`` counts how runs ended.
    """

    variant: str
    requester: str | None
    runs: int
    last_round: Figure
    chosen_round: Figure | None
    released_rounds: float
    largest_clipped_share: float
    ends: dict[str, int]
    scores: dict[str, Figure] = {}


class CaseSummary(Frozen):
    """``summary.json``."""

    case: str
    protection: str
    seeds: tuple[int, ...]
    rows: tuple[SummaryRow, ...]
    versions: dict[str, str]
    judged_by: MetricName = MetricName.ACCURACY


def summarise_case(lines: Sequence[RunLine]) -> CaseSummary:
    """Summarise at least one line, all of one case."""
    variants = tuple(dict.fromkeys(line.variant for line in lines))
    requesters = tuple(dict.fromkeys(line.requester for line in lines))
    rows = [_row(of_variant(lines, variant, one), one) for variant in variants for one in requesters]
    if len(requesters) > 1:
        rows += [_row(of_variant(lines, variant), None) for variant in variants]
    return CaseSummary(
        case=lines[0].case,
        protection=lines[0].protection,
        seeds=tuple(sorted({line.seed for line in lines})),
        rows=tuple(rows),
        versions=lines[-1].versions,
        judged_by=lines[0].judged_by,
    )


def table_of(summary: CaseSummary) -> Table:
    judged = f"test {words_of(summary.judged_by)}, mean ± SE"
    table = Table(title=f"{summary.case}, {summary.protection}, {counted(len(summary.seeds), 'seed')}: {judged}")
    others = tuple(dict.fromkeys(name for row in summary.rows for name in row.scores))
    named = (words_of(MetricName(name)) for name in others)
    columns = ("variant", "requester", "runs", "last round", "remarks", *named, "best on validation", "released rounds")
    for name in columns:
        table.add_column(name, justify="left" if name in ("variant", "requester") else "right")
    for row in summary.rows:
        table.add_row(
            row.variant,
            row.requester or "mean",
            str(row.runs),
            str(row.last_round),
            ", ".join(remarks_on(row)) or "-",
            *(str(row.scores.get(name, "-")) for name in others),
            "-" if row.chosen_round is None else str(row.chosen_round),
            f"{row.released_rounds:.1f}",
        )
    return table


def remarks_on(row: SummaryRow) -> tuple[str, ...]:
    """Return the remarks that a reader of the numbers needs: clipped updates, and runs that ended early, with the
    reason.
    """
    clipped = (f"CLIPPED up to {row.largest_clipped_share:.0%}",) if row.largest_clipped_share else ()
    early = (f"{end.upper()} {runs} of {row.runs}" for end, runs in row.ends.items() if end != COMPLETED)
    return (*clipped, *early)


def write_summary(summary: CaseSummary, lines: Sequence[RunLine], folder: Path) -> None:
    """``summary.json``, ``accuracy.svg`` or another metric's, ``weights_<variant>.svg`` for variants whose weights
    move, and ``distances_<variant>.svg`` for those that open distances.
    """
    rewrite(folder / "summary.json", summary.model_dump_json(indent=2) + "\n")
    rewrite(folder / f"{summary.judged_by.value}.svg", drawn(lambda: metric_figure(lines)))
    for variant in dict.fromkeys(line.variant for line in lines):
        runs = of_variant(lines, variant)
        if any(_moves(run) for run in runs):
            found = {
                (requester, site): values
                for requester in dict.fromkeys(line.requester for line in lines)
                for site, values in _weights(of_variant(lines, variant, requester)).items()
            }
            rewrite(folder / f"weights_{variant}.svg", curved("weight", 0.0).svg(curve_rows(found)))
        measured = [run for run in runs if run.distance]
        if measured:  # one requester's first seed over rounds; of several every one's mean view of every site
            several = len({run.requester for run in measured}) > 1
            rows = similarity_rows(measured, variant) if several else over_rounds_rows(measured[0])
            rewrite(folder / f"distances_{variant}.svg", DISTANCES.svg(rows))


def metric_figure(lines: Sequence[RunLine]) -> PlotFigure:
    """The case's metric on the test part over the rounds, a panel per requester and a curve per variant."""
    metric = lines[0].judged_by
    found = {
        (requester, variant): [run.test_of(metric) for run in of_variant(lines, variant, requester)]
        for requester in dict.fromkeys(line.requester for line in lines)
        for variant in dict.fromkeys(line.variant for line in lines)
    }
    return curved(f"test {words_of(metric)}").figure(curve_rows(found))


def _row(lines: Sequence[RunLine], requester: str | None) -> SummaryRow:
    seeds = sorted({line.seed for line in lines})
    of_seed = [[line for line in lines if line.seed == seed] for seed in seeds]
    ends, judged_by = [line.end for line in lines], lines[0].judged_by
    return SummaryRow(
        variant=lines[0].variant,
        requester=requester,
        runs=len(lines),
        last_round=Figure.of(mean(line.last_of(judged_by) for line in runs) for runs in of_seed),
        chosen_round=_chosen(of_seed),
        released_rounds=mean(line.released_rounds for line in lines),
        largest_clipped_share=max((share for line in lines for share in line.clipped_share if share), default=0.0),
        ends={end: ends.count(end) for end in sorted(set(ends))},
        scores={
            name.value: found
            for name in MetricName
            if name is not judged_by and (found := _score(of_seed, name)) is not None
        },
    )


def _score(of_seed: Sequence[Sequence[RunLine]], name: MetricName) -> Figure | None:
    """One value per seed. A run that failed shows; seeds in which a requester has no such metric are left out.

    None where that leaves nothing, as for AUROC in a mean over requesters of which one has patients of one class alone.
    """
    if not any(value is not None for runs in of_seed for line in runs for value in line.test_of(name)):
        return None
    last = [[(line.last_of(name), line.end == _FAILED) for line in runs] for runs in of_seed]
    whole = [runs for runs in last if all(failed or not math.isnan(value) for value, failed in runs)]
    return Figure.of(mean(value for value, _ in runs) for runs in whole) if whole else None


def _chosen(of_seed: Sequence[Sequence[RunLine]]) -> Figure | None:
    """One value per seed; None unless every run has validation data."""
    values = [[line.chosen_score for line in runs] for runs in of_seed]
    if any(value is None for runs in values for value in runs):
        return None
    return Figure.of(mean(value for value in runs if value is not None) for runs in values)


def _moves(run: RunLine) -> bool:
    return any(value not in (None, values[0]) for values in run.alpha.values() for value in values)


def _weights(runs: Sequence[RunLine]) -> dict[str, list[Values]]:
    """Every run's weights, by site; their means where there are too many sites."""
    sites = tuple(dict.fromkeys(site for run in runs for site in run.alpha))
    if len(sites) > MOST_NAMED_SITES:
        return {f"mean of {len(sites)} contributors": [_mean_weight(run) for run in runs]}
    return {site: [run.alpha[site] for run in runs if site in run.alpha] for site in sites}


def _mean_weight(run: RunLine) -> Values:
    rounds = zip(*run.alpha.values(), strict=True)
    found = ([value for value in values if value is not None] for values in rounds)
    return tuple(mean(values) if values else None for values in found)
