"""What a case found for every requester: a metric after the last round, and against another variant, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from client_agent.scoring.score import MetricName, value_of
from harness.simulate.charts import Curve, Panel, Spread, curve, of_variant
from harness.simulate.run_line import RunLine

Lines = Sequence[RunLine]
ACCURACY = MetricName.ACCURACY


def requesters(lines: Lines) -> tuple[str, ...]:
    """In the order of their names."""
    return tuple(sorted({line.requester for line in lines}))


def last_value(line: RunLine, metric: MetricName) -> float:
    """The metric on the requester's test part after the last round, NaN where the run has none."""
    value = line.last_of(metric)
    if math.isnan(value) and line.final_scores is not None:
        final = value_of(line.final_scores.scores, metric)
        return math.nan if final is None else final
    return value


def last_values(lines: Lines, metric: MetricName) -> dict[int, float]:
    """By seed. A run that failed is NaN and shows; one on whose test part there is no such metric is left out."""
    values = {line.seed: last_value(line, metric) for line in lines}
    failed = {line.seed for line in lines if line.end == "failed"}
    return {seed: value for seed, value in values.items() if seed in failed or not math.isnan(value)}


def spread_of(lines: Lines, variant: str, requester: str, metric: MetricName = ACCURACY) -> Spread | None:
    """Over seeds; None where no run has the metric."""
    values = last_values(of_variant(lines, variant, requester), metric)
    return Spread.of(values.values()) if values else None


def over_requesters(lines: Lines, variant: str, metric: MetricName = ACCURACY) -> Spread | None:
    """Mean over requesters, the standard error over seeds: every seed's mean over requesters is one value.

    Seeds that lack a requester, or the metric at one, are left out.
    """
    by_requester = [last_values(of_variant(lines, variant, name), metric) for name in requesters(lines)]
    whole = set.intersection(*(set(values) for values in by_requester)) if by_requester else set()
    means = [mean(values[seed] for values in by_requester) for seed in sorted(whole)]
    return Spread.of(means) if means else None


@dataclass(frozen=True)
class Gain:
    """A variant's metric less another's with the same seed: paired, so that the split cancels."""

    requester: str
    difference: Spread
    metric: MetricName

    @property
    def better(self) -> bool:
        """By more than two standard errors."""
        of = self.difference
        return of.clearly_negative if self.metric.smaller_is_better else of.clearly_positive

    @property
    def worse(self) -> bool:
        """By more than two standard errors."""
        of = self.difference
        return of.clearly_positive if self.metric.smaller_is_better else of.clearly_negative


def gains(lines: Lines, variant: str, baseline: str, metric: MetricName = ACCURACY) -> tuple[Gain, ...]:
    """One per requester with a seed in which both have the metric."""
    found = []
    for requester in requesters(lines):
        base = last_values(of_variant(lines, baseline, requester), metric)
        own = last_values(of_variant(lines, variant, requester), metric)
        apart = [own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())]
        if apart:
            found.append(Gain(requester, Spread.of(apart), metric))
    return tuple(found)


def metric_panels(lines: Lines, variants: Mapping[str, str], metric: MetricName = ACCURACY) -> tuple[Panel, ...]:
    """The metric over rounds, one panel per requester."""
    return tuple(
        Panel(
            requester,
            tuple(
                curve(title, [run.test_of(metric) for run in runs])
                for variant, title in variants.items()
                if (runs := of_variant(lines, variant, requester))
            ),
        )
        for requester in requesters(lines)
    )


def weight_curves(lines: Lines, variant: str, requester: str) -> tuple[Curve, ...]:
    """Every contributor's weight over rounds, mean over seeds."""
    runs = of_variant(lines, variant, requester)
    sites = sorted({site for run in runs for site in run.alpha})
    return tuple(curve(site, [run.alpha[site] for run in runs if site in run.alpha]) for site in sites)
