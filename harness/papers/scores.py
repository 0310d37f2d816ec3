"""Scores after the last round, by rule and requester: what the tables about simulated runs share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Final

import pandas as pd

from client_agent.learning.scores import MetricName, value_of, words_of
from harness.simulate.charts import Spread
from harness.simulate.run_line import RunLine

LOSS: Final = "loss"
FINISHED: Final = "_finished"
LOCAL: Final = "local"
FEDAVG: Final = "fedavg"
Row = tuple[str, ...]
Table = list[Row]
"""The heads, then the rows, as they are printed."""
_BY_ROUND: Final = ("test_accuracy", "test_loss", "test_log_loss", "test_auroc", "test_c_index", "test_rmse", "kind")


class Scores:
    """The runs of one case by variant, requester and seed."""

    def __init__(self, lines: Sequence[RunLine]) -> None:
        self.requesters = tuple(sorted({line.requester for line in lines}))
        self.variants = dict.fromkeys(line.variant for line in lines)
        frame = pd.DataFrame(
            {
                "variant": [line.variant for line in lines],
                "requester": [line.requester for line in lines],
                "seed": [line.seed for line in lines],
                "failed": [line.end == "failed" for line in lines],
                LOSS: [_last_loss(line) for line in lines],
                **{metric.value: [_last(line, metric) for line in lines] for metric in MetricName},
            }
        )
        self._nobody = frame[:0].set_index("seed")
        self._of = {key: of.set_index("seed").sort_index() for key, of in frame.groupby(["variant", "requester"])}

    def seeds(self, variant: str) -> int:
        """With how many a variant has run."""
        return len({seed for (name, _), of in self._of.items() if name == variant for seed in of.index})

    def values(self, variant: str, requester: str, metric: str = MetricName.ACCURACY) -> pd.Series:
        """A series by seed. A run that failed is NaN and shows; one whose test part has no such metric is left out."""
        of = self._of.get((variant, requester), self._nobody)
        return of[metric] if metric == LOSS else of[metric][of.failed | of[metric].notna()]

    def spread(self, variant: str, requester: str, metric: str = MetricName.ACCURACY) -> Spread | None:
        """Over seeds; None where no run has the metric."""
        return spread_of(self.values(variant, requester, metric))

    def over_requesters(self, variant: str, metric: str = MetricName.ACCURACY) -> Spread | None:
        """Mean over requesters, the standard error over seeds; seeds that lack a requester are left out."""
        each = [self.values(variant, requester, metric).to_dict() for requester in self.requesters]
        seeds = sorted(set.intersection(*map(set, each))) if each else []
        return spread_of([mean(of[seed] for of in each) for seed in seeds])

    def better_of_both(self, requester: str) -> pd.Series:
        """Losses of training alone or of FedAvg, whichever has the smaller mean over the seeds of both.

        A rule that failed once is not the better one.
        """
        alone, averaged = (self.values(variant, requester, LOSS) for variant in (LOCAL, FEDAVG))
        seeds = alone.index.intersection(averaged.index)
        means = [of[seeds].mean(skipna=False) for of in (alone, averaged)]
        chosen = averaged if (math.inf if math.isnan(means[0]) else means[0]) > means[1] else alone
        return chosen[seeds]

    def less(self, variant: str, other: str, metric: str = MetricName.ACCURACY) -> dict[str, Spread]:
        """Subtract, by requester, one variant's metric from another's, same seed against same seed, so that the split
        cancels.

        ``other``: a variant, or ``better_of_both``, of losses.
        """
        found = {}
        for name in self.requesters:
            own = self.values(variant, name, metric)
            base = self.better_of_both(name) if other == BETTER else self.values(other, name, metric)
            seeds = own.index.intersection(base.index)
            if len(seeds):
                found[name] = Spread.of((own[seeds] - base[seeds]).tolist())
        return found


BETTER: Final = "better_of_both"


def spread_of(values: pd.Series | Sequence[float]) -> Spread | None:
    """None for no value."""
    return Spread.of(list(values)) if len(values) else None


def _last(line: RunLine, metric: MetricName) -> float:
    value = line.last_of(metric)
    if math.isnan(value) and line.final_scores is not None:
        final = value_of(line.final_scores.scores, metric)
        return math.nan if final is None else final
    return value


def _last_loss(line: RunLine) -> float:
    last = line.test_loss[-1] if line.test_loss and line.end != "failed" else None
    return math.nan if last is None else last


def with_rules_alone(lines: Sequence[RunLine]) -> tuple[RunLine, ...]:
    """The lines, and for every rule that has run only with a finish its rounds before that.

    For finishes that hold nothing out of the rounds: these are then what they would be without a finish.
    """
    ran = {line.variant for line in lines}
    finished = [line for line in lines if line.variant.endswith(FINISHED)]
    return (*lines, *(unfinished(line) for line in finished if line.variant.removesuffix(FINISHED) not in ran))


def unfinished(line: RunLine) -> RunLine:
    """The run up to its last round, under the rule's own name; a run that failed before its finish has none to cut."""
    cut = len(line.kind) - (line.kind[-1:] == ("finished",))
    shorter = {name: getattr(line, name)[:cut] for name in _BY_ROUND}
    metrics = {name: values[:cut] for name, values in line.test_metrics.items()}
    name = line.variant.removesuffix(FINISHED)
    return line.model_copy(update={**shorter, "variant": name, "test_metrics": metrics, "final_scores": None})


def is_better(difference: Spread, metric: str) -> bool:
    """Return whether it is better by more than two standard errors."""
    smaller = metric == LOSS or MetricName(metric).smaller_is_better
    return difference.clearly_negative if smaller else difference.clearly_positive


def is_worse(difference: Spread, metric: str) -> bool:
    """Return whether it is worse by more than two standard errors."""
    smaller = metric == LOSS or MetricName(metric).smaller_is_better
    return difference.clearly_positive if smaller else difference.clearly_negative


def tally(found: Mapping[str, Spread], metric: str) -> str:
    """Better / not clearly different / worse; none where no run has the metric."""
    if not found:
        return "none"
    better, worse = (sum(count(one, metric) for one in found.values()) for count in (is_better, is_worse))
    return f"{better} / {len(found) - better - worse} / {worse}"


def signed(spread: Spread) -> str:
    """+.012 ± .003, bold where it is further than two standard errors from nothing."""
    error = "" if spread.error is None else f" ± {spread.error:.3f}"
    text = f"{spread.mean:+.3f}{error}"
    return f"**{text}**" if spread.clearly_positive or spread.clearly_negative else text


def shown(spread: Spread | None, nothing: str = "none") -> str:
    return nothing if spread is None else str(spread)


def scores_table(
    scores: Scores,
    rules: Mapping[str, str],
    metric: MetricName = MetricName.ACCURACY,
    names: Sequence[str] = (),
    rates: Mapping[str, str] | None = None,
    quoted: Sequence[Row] = (),
) -> Table:
    """A row for every rule that has run, the best of a column in bold; quoted rows are not compared.

    ``names``: the requesters in this order; ``rates``: the rules' rates, in a column of their own.
    """
    names = names or scores.requesters
    ran = [variant for variant in rules if variant in scores.variants]
    columns = [[scores.spread(variant, name, metric) for variant in ran] for name in names]
    columns.append([scores.over_requesters(variant, metric) for variant in ran])
    cells = [_best_in_bold(column, metric.smaller_is_better) for column in columns]
    rows = [
        (rules[variant], *_rate(rates, variant), *of) for variant, of in zip(ran, zip(*cells, strict=True), strict=True)
    ]
    return [("rule", *(["rate"] if rates else []), *names, "mean"), *rows, *((*row, "") for row in quoted)]


def _rate(rates: Mapping[str, str] | None, variant: str) -> Row:
    return (rates[variant],) if rates else ()


def _best_in_bold(column: Sequence[Spread | None], smallest: bool) -> list[str]:
    """Among those over the most runs."""
    most = max((cell.count for cell in column if cell), default=0)
    best = (min if smallest else max)((cell.mean for cell in column if cell and cell.count == most), default=None)
    return [f"**{cell}**" if cell and cell.mean == best else shown(cell) for cell in column]


def less_table(scores: Scores, rules: Mapping[str, str], metric: MetricName, baseline: str = LOCAL) -> Table:
    """A row for every rule that has run, a column per requester, and for how many the rule is better and worse."""
    rows = []
    for variant, title in rules.items():
        found = scores.less(variant, baseline, metric) if variant != baseline else {}
        if found:
            cells = (signed(found[name]) if name in found else "none" for name in scores.requesters)
            rows.append((title, *cells, tally(found, metric)))
    best = "smaller is better" if metric.smaller_is_better else "larger is better"
    return [(f"{words_of(metric)} ({best})", *scores.requesters, "better / same / worse"), *rows]
