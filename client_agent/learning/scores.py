"""Score a model on a site's own test part: named numbers, with intervals, or reasons where there is none."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from host.frozen import Frozen
from protocol.messages.control import TaskKind


class MetricName(StrEnum):
    """The built-in metrics; results and tables call them so, result lines ``test_`` before it.

    For several classes or labels, areas, F1 and balanced accuracy are means over them, each against the rest. Brier
    score, log-loss and errors are better when small; a calibration slope is best at 1; all others when large.
    """

    ACCURACY = "accuracy"
    BALANCED_ACCURACY = "balanced_accuracy"
    AUROC = "auroc"
    AUPRC = "auprc"
    F1 = "f1"
    LOG_LOSS = "log_loss"
    BRIER = "brier"
    CALIBRATION_SLOPE = "calibration_slope"
    RMSE = "rmse"
    MAE = "mae"
    R2 = "r2"
    POISSON_DEVIANCE = "poisson_deviance"
    C_INDEX = "c_index"
    INTEGRATED_BRIER = "integrated_brier"

    @property
    def smaller_is_better(self) -> bool:
        return self in _ERRORS


_ERRORS: Final = frozenset(
    {
        MetricName.LOG_LOSS,
        MetricName.BRIER,
        MetricName.RMSE,
        MetricName.MAE,
        MetricName.POISSON_DEVIANCE,
        MetricName.INTEGRATED_BRIER,
    }
)
_OF_CLASSES: Final = (
    MetricName.ACCURACY,
    MetricName.AUROC,
    MetricName.LOG_LOSS,
    MetricName.AUPRC,
    MetricName.BALANCED_ACCURACY,
    MetricName.F1,
    MetricName.BRIER,
    MetricName.CALIBRATION_SLOPE,
)
METRICS: Final[dict[TaskKind, tuple[MetricName, ...]]] = {
    TaskKind.CLASSES: _OF_CLASSES,
    TaskKind.MULTI_LABEL: tuple(name for name in _OF_CLASSES if name is not MetricName.CALIBRATION_SLOPE),
    TaskKind.REGRESSION: (MetricName.RMSE, MetricName.MAE, MetricName.R2),
    TaskKind.COUNTS: (MetricName.RMSE, MetricName.MAE, MetricName.POISSON_DEVIANCE),
    TaskKind.SURVIVAL: (MetricName.C_INDEX, MetricName.INTEGRATED_BRIER),
    TaskKind.OWN: (),
}
"""Every task's metrics, the one that is shown where there is room for one first."""
FOLLOWED: Final = frozenset(
    {MetricName.ACCURACY, MetricName.LOG_LOSS, MetricName.AUROC, MetricName.C_INDEX, MetricName.RMSE}
)
"""Metrics that a simulation computes after every round; all others after the last one."""


class Score(Frozen):
    """One metric on a test part. Without ``value`` it could not be computed there, for the ``reason``.

    ``low`` and ``high`` bound its 95 % bootstrap interval, where one was asked for.
    """

    name: str
    value: float | None
    reason: str = ""
    low: float | None = None
    high: float | None = None


class CalibrationBin(Frozen):
    """Among a tenth of the test examples, ordered by their probability: its mean, and the share of events."""

    predicted: float
    observed: float


class FinalScores(Frozen):
    """All metrics of one model on one site's test part; ``samples`` is the number of bootstrap samples."""

    examples: int
    samples: int
    scores: tuple[Score, ...]
    calibration: tuple[CalibrationBin, ...] = ()


def value_of(scores: tuple[Score, ...], name: str) -> float | None:
    """The metric's value, None where it is not among them or was not computed."""
    return next((score.value for score in scores if score.name == name), None)


_WORDS: Final[dict[str, str]] = {
    MetricName.AUROC: "AUROC",
    MetricName.AUPRC: "AUPRC",
    MetricName.F1: "F1",
    MetricName.LOG_LOSS: "log-loss",
    MetricName.BRIER: "Brier score",
    MetricName.RMSE: "RMSE",
    MetricName.MAE: "MAE",
    MetricName.R2: "R2",
    MetricName.POISSON_DEVIANCE: "Poisson deviance",
    MetricName.C_INDEX: "C-index",
    MetricName.INTEGRATED_BRIER: "integrated Brier score",
}


def words_of(metric: str) -> str:
    """The metric's name for people, also of one that a plug-in brings."""
    return _WORDS.get(metric, metric.replace("_", " "))


def shown_value(score: Score) -> str:
    """A score's value as people read it: three decimals, with its interval where there is one."""
    if score.value is None:
        return f"- ({score.reason})"
    interval = "" if score.low is None or score.high is None else f" [{score.low:.3f}, {score.high:.3f}]"
    return f"{score.value:.3f}{interval}"


def shown_score(score: Score) -> str:
    return f"{score.name} {shown_value(score)}"


FIRST_SCORES: Final = 2
"""The number of metrics that are shown of a round: the first ones of the study's task."""


def first_scores(scores: tuple[Score, ...]) -> str:
    """A round's first scores as people read them."""
    return ", ".join(map(shown_score, scores[:FIRST_SCORES]))
