"""One run of a case, and the line about it in ``results.jsonl``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from client_agent.learning.scores import FinalScores, MetricName, Score, value_of
from client_agent.site.events import SiteValue, site_values
from harness.engine.history import RoundKind, RoundRecord, series_of
from harness.simulate.case import TuneValue
from host.frozen import Frozen

SMALL_MODEL: Final = 1000
"""Models of up to so many parameters are kept in the line itself."""
MOST_PAIRED_SITES: Final = 20
"""Pairs of so many sites, the requester among them, are kept in the line."""
_NAMED: Final = frozenset({MetricName.LOG_LOSS, MetricName.AUROC, MetricName.C_INDEX, MetricName.RMSE})
FORMAT: Final = "moiety-run/1"


@dataclass(frozen=True)
class RunKey:
    variant: str
    requester: str
    seed: int

    def __str__(self) -> str:
        return f"{self.variant}-{self.requester}-{self.seed}"


Values = tuple[float | None, ...]


def _none(values: object) -> bool:
    return not values


class PairSeries(Frozen):
    """The distances between two sites' updates, one value per round."""

    first: str
    second: str
    distance: Values


class RunLine(Frozen):
    """A finished run; lists have one entry per round, None where there is no number.

    ``study_digest`` covers the case file's part that decides this run, ``data_digest`` every site's examples.
    ``weight`` are the weights handed out before the round, ``alpha`` those after it in full precision.
    ``distance``, ``norm``, ``inner_product`` and ``pairs`` are what the requester had opened; pairs of more than 20
    sites are not kept. ``took_part`` are the contributors in the sum; ``failed_check``, ``not_selected`` and
    ``declined`` those left out of it, and why. ``sum_of_weights`` counts the requester's. ``class_accuracy`` has one
    test accuracy per class for every round, ``class_totals`` all sites' examples per class where the rule counts them.
    ``final_model`` is there for models of up to 1000 parameters. ``end`` is a run's end, or ``failed``.
    ``code_digest`` says which code made it, "" in lines from before that was written down. ``test_log_loss`` to
    ``test_rmse`` are there where the task has them, ``test_metrics`` and ``validation_metrics`` hold what else the run
    follows; ``judged_by`` is the one that choices are made on. ``final_scores`` are all metrics after the last round.
    """

    format: str = FORMAT
    case: str
    variant: str
    requester: str
    seed: int
    rule: str
    protection: str
    erosion_applies: str
    study_digest: str
    data_digest: str
    settings: dict[str, TuneValue]
    end: str
    reason: str
    released_rounds: int
    seconds: float
    kind: tuple[str, ...]
    test_accuracy: Values
    test_loss: Values
    validation_accuracy: Values
    model_norm: Values
    requester_norm: Values
    clipped_share: Values
    took_part: tuple[tuple[str, ...], ...]
    alpha: dict[str, Values]
    weight: dict[str, Values]
    distance: dict[str, Values]
    final_model: tuple[float, ...] | None
    versions: dict[str, str]
    class_accuracy: tuple[Values, ...] = ()
    norm: dict[str, Values] = {}
    inner_product: dict[str, Values] = {}
    pairs: tuple[PairSeries, ...] = ()
    failed_check: tuple[tuple[str, ...], ...] = ()
    not_selected: tuple[tuple[str, ...], ...] = ()
    declined: tuple[tuple[str, ...], ...] = ()
    sum_of_weights: Values = ()
    class_totals: tuple[int, ...] = ()
    computed_on: str = "cpu"
    code_digest: str = ""
    judged_by: MetricName = MetricName.ACCURACY
    test_log_loss: Values = Field(default=(), exclude_if=_none)
    test_auroc: Values = Field(default=(), exclude_if=_none)
    test_c_index: Values = Field(default=(), exclude_if=_none)
    test_rmse: Values = Field(default=(), exclude_if=_none)
    test_metrics: dict[str, Values] = Field(default={}, exclude_if=_none)
    validation_metrics: dict[str, Values] = Field(default={}, exclude_if=_none)
    final_scores: FinalScores | None = None

    @property
    def key(self) -> RunKey:
        return RunKey(self.variant, self.requester, self.seed)

    def by_round(self) -> dict[str, Values]:
        """Every list with one number per round, further metrics among them as ``test_`` or ``validation_`` and name."""
        parts = (("test", self.test_metrics), ("validation", self.validation_metrics))
        others = {f"{part}_{name}": values for part, found in parts for name, values in found.items()}
        return others | {name: values for name in _BY_ROUND if (values := getattr(self, name))}

    def test_of(self, metric: MetricName) -> Values:
        """The metric on the test part after every round; nothing where the run does not follow it."""
        named = metric in _NAMED or metric is MetricName.ACCURACY
        found: Values = getattr(self, f"test_{metric.value}") if named else self.test_metrics.get(metric.value, ())
        return found

    def validation_of(self, metric: MetricName) -> Values:
        """The same on the validation part."""
        if metric is MetricName.ACCURACY:
            return self.validation_accuracy
        return self.validation_metrics.get(metric.value, ())

    def last_of(self, metric: MetricName) -> float:
        """The metric on the test part after the last round; NaN where it has none there."""
        values = self.test_of(metric)
        last = values[-1] if values else None
        return math.nan if last is None else last

    @property
    def chosen_score(self) -> float | None:
        """The metric that the run is judged by, on the test part of the round that is best on validation data, the
        first of equals; None without such data.
        """
        sign = -1 if self.judged_by.smaller_is_better else 1
        validated = self.validation_of(self.judged_by)
        rounds = [(sign * value, -place) for place, value in enumerate(validated) if value is not None]
        return self.test_of(self.judged_by)[-max(rounds)[1]] if rounds else None


_BY_ROUND: Final = tuple(name for name, field in RunLine.model_fields.items() if field.annotation == Values)
_NUMBERS: Final = (
    "test_accuracy", "test_loss", "validation_accuracy", "model_norm", "requester_norm", "clipped_share",
    "sum_of_weights",
)  # fmt: skip
_COPIED: Final = ("took_part", "class_accuracy", "failed_check", "not_selected", "declined")


def of_rounds(records: tuple[RoundRecord, ...], sites: tuple[str, ...], grid: int) -> dict[str, Any]:
    """The fields of a line that its rounds decide; ``sites`` are the contributors, ``grid`` the weights' one."""
    test = _by_metric([record.test_scores for record in records])
    weights = [site_values((one.site, one.numerator / grid) for one in record.handed_out) for record in records]
    return {
        "released_rounds": sum(record.kind is RoundKind.RELEASED for record in records),
        "class_totals": next((record.class_totals for record in records if record.class_totals), ()),
        "kind": tuple(record.kind.value for record in records),
        **{name: tuple(finite(getattr(record, name)) for record in records) for name in _NUMBERS},
        **{name: tuple(getattr(record, name) for record in records) for name in _COPIED},
        **{f"test_{name}": test.pop(name.value) for name in _NAMED if name.value in test},
        "test_metrics": test,  # without those that stand by themselves
        "validation_metrics": _by_metric([record.validation_scores for record in records]),
        "alpha": _by_site([record.alphas for record in records], sites),
        "weight": _by_site(weights, sites),
        "distance": _by_site([record.distances for record in records], sites),
        "norm": _by_site([record.norms for record in records], sites),
        "inner_product": _by_site([record.inner_products for record in records], sites),
        "pairs": _pairs(records) if len(sites) < MOST_PAIRED_SITES else (),
    }


def _by_metric(rounds: list[tuple[Score, ...]]) -> dict[str, Values]:
    names = dict.fromkeys(score.name for scores in rounds for score in scores)
    names.pop(MetricName.ACCURACY.value, None)
    return {name: tuple(value_of(scores, name) for scores in rounds) for name in names}


def _by_site(rounds: list[tuple[SiteValue, ...]], sites: tuple[str, ...]) -> dict[str, Values]:
    """One series per site; a site without a number in any round is left out."""
    series = {site: tuple(map(finite, values)) for site, values in series_of(sites, rounds).items()}
    return {site: values for site, values in series.items() if any(value is not None for value in values)}


def _pairs(records: tuple[RoundRecord, ...]) -> tuple[PairSeries, ...]:
    found = [{(pair.first, pair.second): pair.value for pair in record.pairs} for record in records]
    together = dict.fromkeys(key for values in found for key in values)
    return tuple(
        PairSeries(first=first, second=second, distance=tuple(finite(values.get((first, second))) for values in found))
        for first, second in together
    )


def finite(value: float | None) -> float | None:
    """The number, or None: JSON knows neither NaN nor infinity."""
    return value if value is not None and math.isfinite(value) else None
