"""All metrics of a task on one part of a site's data, point values or with bootstrap intervals.

What cannot be computed has no value and a reason; nothing here stops a study. scikit-learn and scikit-survival are
loaded when something is scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final

import numpy as np

from client_agent.scoring.predicted import NotComputable, Predicted
from client_agent.scoring.score import METRICS, CalibrationBin, FinalScores, MetricName, Score
from protocol.messages.control import TaskKind

_LEAST_SHARE: Final = 0.5
_INTERVAL: Final = (2.5, 97.5)


def scores(of: Predicted, only: Collection[MetricName] | None = None) -> tuple[Score, ...]:
    """The task's metrics, or those of them that are in ``only``."""
    names = [name for name in METRICS[of.task.kind] if only is None or name in only]
    return tuple(_score(of, name) for name in names if name is not MetricName.CALIBRATION_SLOPE or _two_classes(of))


def final_scores(of: Predicted, samples: int, seed: int) -> FinalScores:
    """All of the task's metrics with 95 % bootstrap percentile intervals over ``samples`` draws of the examples.

    The model is held fixed: what is drawn again are the test examples. A metric that more than half of the draws
    cannot compute has no interval. ``samples`` of 0 leaves intervals out.
    """
    points = scores(of)
    draws: dict[str, list[float]] = {score.name: [] for score in points}
    random = np.random.default_rng(seed)
    for _ in range(samples):
        drawn = of.rows(random.integers(0, len(of.y), len(of.y)))
        for score in scores(drawn, {MetricName(point.name) for point in points if point.value is not None}):
            draws[score.name] += [] if score.value is None else [score.value]
    found = tuple(with_interval(score, draws[score.name], samples) for score in points)
    return FinalScores(examples=len(of.y), samples=samples, scores=found, calibration=_calibration(of))


def with_interval(score: Score, draws: list[float], samples: int) -> Score:
    """The score with the 95 % percentile interval of its draws, where enough of them could be computed."""
    if score.value is None or samples == 0 or len(draws) < _LEAST_SHARE * samples:
        return score
    low, high = np.percentile(draws, _INTERVAL)
    return score.model_copy(update={"low": float(low), "high": float(high)})


def _score(of: Predicted, name: MetricName) -> Score:
    try:
        of.require_usable()
        value = _metric(of.task.kind, name)(of)
    except (NotComputable, ValueError) as why:
        return Score(name=name.value, value=None, reason=str(why)[:300])
    if not math.isfinite(value):
        return Score(name=name.value, value=None, reason="the metric is not finite on the test part")
    return Score(name=name.value, value=value)


def _metric(kind: TaskKind, name: MetricName) -> Callable[[Predicted], float]:
    from client_agent.scoring import classes, numbers

    if kind is TaskKind.SURVIVAL:
        from client_agent.scoring import survival

        return survival.METRICS[name]
    return (classes.METRICS | numbers.METRICS)[name]


def _two_classes(of: Predicted) -> bool:
    return bool(of.outputs.shape[1] == 2)


def _calibration(of: Predicted) -> tuple[CalibrationBin, ...]:
    from client_agent.scoring.classes import calibration

    return calibration(of)
