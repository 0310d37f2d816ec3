"""Metrics of a model on one part of a site's data: values alone, or with bootstrap intervals.

What cannot be computed has no value and a reason; nothing here stops a study. scikit-learn and scikit-survival are
loaded when they score something. Accuracy, log-loss and the area under the ROC curve are in numpy, to the bits of
scikit-learn: a simulation wants them after every round and a bootstrap for every draw, and on the few hundred examples
of a test part scikit-learn spends 3 ms in looking at its arguments, far more than a round of a small model.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning
from scipy.special import expit, softmax

from client_agent.learning.data import EVENT, TIME
from client_agent.learning.scores import METRICS, CalibrationBin, FinalScores, MetricName, Score, value_of
from host.frozen import Frozen
from protocol.messages.control import TaskKind, TaskSpec
from protocol.summary.table_one import is_constant

if TYPE_CHECKING:
    from sksurv.linear_model.coxph import BreslowEstimator

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
_LEAST_SHARE: Final = 0.5
_INTERVAL: Final = (2.5, 97.5)
_CALIBRATION_BINS: Final = 10
_CURVE_POINTS: Final = 50


class NotComputable(ValueError):
    """A metric means nothing on these examples; the text says why, for people."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """Outputs [n, K] for examples with targets y, as the task has both; n is at least 1.

    ``train`` are those of the site's training part, of which a survival task estimates its baseline hazard.
    """

    task: TaskSpec
    outputs: NDArray[np.float32] = field(repr=False)
    y: NDArray[Any] = field(repr=False)
    train: Predicted | None = field(default=None, repr=False)

    def rows(self, rows: NDArray[np.int64]) -> Predicted:
        """Some of the examples, a row as often as it is named."""
        return Predicted(self.task, self.outputs[rows], self.y[rows], self.train)

    @cached_property
    def values(self) -> Array:
        """The predictions: probabilities, numbers, rates, all [n, K], or log hazards [n, 1]."""
        outputs = self.outputs.astype(np.float64)
        match self.task.kind:
            case TaskKind.CLASSES:
                return np.asarray(softmax(outputs, axis=1))
            case TaskKind.MULTI_LABEL:
                return np.asarray(expit(outputs))
            case TaskKind.COUNTS:
                with np.errstate(over="ignore"):
                    return np.exp(outputs)
            case _:
                return outputs


class Paired(Frozen):
    """One metric of both models; ``difference`` is the first minus the second, None where either has no value."""

    first: Score
    second: Score
    difference: Score


def scores(of: Predicted, only: Collection[MetricName] | None = None) -> tuple[Score, ...]:
    """The task's metrics, or those of them that are in ``only``."""
    names = [name for name in METRICS[of.task.kind] if only is None or name in only]
    return tuple(
        _score(of, name) for name in names if name is not MetricName.CALIBRATION_SLOPE or of.outputs.shape[1] == 2
    )


def final_scores(of: Predicted, samples: int, seed: int) -> FinalScores:
    """All of the task's metrics with 95 % bootstrap percentile intervals over ``samples`` draws of the examples.

    The model is held fixed: what is drawn again are the test examples. A metric that more than half of the draws
    cannot compute has no interval. ``samples`` of 0 leaves intervals out.
    """
    draws = _draws((of,), samples, seed)
    found = tuple(_with_interval(score, [value for (value,) in draws[score.name]]) for score in scores(of))
    return FinalScores(examples=len(of.y), samples=samples, scores=found, calibration=_calibration(of))


def paired_scores(first: Predicted, second: Predicted, samples: int, seed: int) -> tuple[Paired, ...]:
    """All metrics of the task; in every draw both models are judged on the same examples, drawn with replacement.

    Both are the outputs for the same examples in the same order.
    """
    found, draws = [], _draws((first, second), samples, seed)
    for one, other in zip(scores(first), scores(second), strict=True):
        pairs = draws[one.name]
        apart = Score(name=one.name, value=_minus(one.value, other.value), reason=one.reason or other.reason)
        found.append(
            Paired(
                first=_with_interval(one, [value for value, _ in pairs]),
                second=_with_interval(other, [value for _, value in pairs]),
                difference=_with_interval(apart, [_minus(*pair) for pair in pairs]),
            )
        )
    return tuple(found)


def _draws(parts: Sequence[Predicted], samples: int, seed: int) -> dict[str, list[tuple[float | None, ...]]]:
    """Each metric's value of every part, on the same rows drawn with replacement, so many times."""
    found: dict[str, list[tuple[float | None, ...]]] = {name.value: [] for name in METRICS[parts[0].task.kind]}
    random, examples = np.random.default_rng(seed), len(parts[0].y)
    for _ in range(samples):
        rows = random.integers(0, examples, examples)
        drawn = [scores(part.rows(rows)) for part in parts]
        for name, values in found.items():
            values.append(tuple(value_of(one, name) for one in drawn))
    return found


def _minus(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second


def _with_interval(score: Score, draws: Sequence[float | None]) -> Score:
    given = [value for value in draws if value is not None]
    if score.value is None or not given or len(given) < _LEAST_SHARE * len(draws):
        return score
    low, high = np.percentile(given, _INTERVAL)
    return score.model_copy(update={"low": float(low), "high": float(high)})


def _score(of: Predicted, name: MetricName) -> Score:
    try:
        if not np.isfinite(of.values).all():
            raise NotComputable("the model's outputs are not finite")
        value = _of_classes(of, name) if name in _OF_CLASSES else _OF_OTHERS[name](of)
    except ValueError as why:
        return Score(name=name.value, value=None, reason=str(why)[:300])
    if not math.isfinite(value):
        return Score(name=name.value, value=None, reason="the metric is not finite on the test part")
    return Score(name=name.value, value=value)


def _of_classes(of: Predicted, name: MetricName) -> float:
    """The score of the classes, or its mean over labels, each as two classes."""

    def score(y: Labels, p: Array) -> float:
        if name in _OF_EVERY_CLASS:
            _require_every_class(y, p)
        return float(_OF_CLASSES[name](y, p))

    if of.task.kind is TaskKind.CLASSES:
        return score(of.y, of.values)
    labels = zip(of.y.T.astype(np.int64), of.values.T, strict=True)
    return float(np.mean([score(y, np.stack([1 - p, p], axis=1)) for y, p in labels]))


def _require_every_class(y: Labels, p: Array) -> None:
    missing = sorted(set(range(p.shape[1])) - set(np.unique(y).tolist()))
    if missing:
        raise NotComputable(f"the test part has no example of class {', '.join(map(str, missing))}")


def _sklearn() -> ModuleType:
    return import_module("sklearn.metrics")


def balanced_accuracy(y: Labels, p: Array) -> float:
    """The mean of the classes' recalls, over the classes that are there."""
    return float(_sklearn().recall_score(y, p.argmax(axis=1), labels=np.unique(y), average="macro", zero_division=0))


def area_under_roc(y: Labels, p: Array) -> float:
    """Return the area under the ROC curve: the second class's of two, of more the mean of each against the rest.

    Shapes:   int64[n], float64[n, K]
    Requires: an example of every class
    """
    if p.shape[1] == 2:
        return _area(y == 1, p[:, 1])
    return float(np.mean([_area(y == one, column) for one, column in enumerate(p.T)]))


def _area(positive: NDArray[np.bool_], score: Array) -> float:
    """Integrate by trapezoids between the thresholds at which the curve turns."""
    order = np.argsort(-score, kind="stable")
    last_of_tie = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    hits = np.cumsum(positive[order], dtype=np.float64)[last_of_tie]
    misses = 1.0 + last_of_tie - hits
    turns = np.ones(len(hits), dtype=bool)
    turns[1:-1] = (np.diff(misses, 2) != 0) | (np.diff(hits, 2) != 0)
    x, y = (np.append(0.0, counts[turns]) / counts[-1] for counts in (misses, hits))
    return float(np.trapezoid(y, x))


def average_precision(y: Labels, p: Array) -> float:
    """The second class's of two, of more the mean of each against the rest."""
    if p.shape[1] == 2:
        return float(_sklearn().average_precision_score(y, p[:, 1]))
    return float(_sklearn().average_precision_score(np.eye(p.shape[1])[y], p, average="macro"))


def f1(y: Labels, p: Array) -> float:
    """The second class's of two, of more the mean of each against the rest."""
    return float(
        _sklearn().f1_score(y, p.argmax(axis=1), average="binary" if p.shape[1] == 2 else "macro", zero_division=0)
    )


def mean_log_loss(y: Labels, p: Array) -> float:
    """The mean of -ln p over the examples, p the probability of the true class, no nearer to 0 and 1 than rounding.

    Shapes:  int64[n], float64[n, K]
    Raises:  NotComputable for a class that the model does not know
    """
    if y.min() < 0 or y.max() >= p.shape[1]:
        raise NotComputable(f"the test part has classes beyond the model's {p.shape[1]}")
    least = np.finfo(np.float64).eps
    return float(np.mean(-np.log(np.clip(p[np.arange(len(y)), y], least, 1 - least))))


def brier(y: Labels, p: Array) -> float:
    """Mean squared difference to the truth; between 0 and 1 for two classes, and 2 for more."""
    if p.shape[1] == 2:
        return float(_sklearn().brier_score_loss(y, p[:, 1], pos_label=1))
    return float(_sklearn().brier_score_loss(y, p, labels=np.arange(p.shape[1])))


def calibration_slope(of: Predicted) -> float:
    """The slope of a logistic regression of two classes on the model's log odds: 1 calibrated, less overconfident."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    _require_every_class(of.y, of.values)
    odds = of.outputs[:, 1].astype(np.float64) - of.outputs[:, 0]
    if _area(of.y == 1, odds) in (0.0, 1.0):
        raise NotComputable("the classes are wholly separated, so any slope fits")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        warnings.simplefilter("error", LinAlgWarning)
        try:
            return float(LogisticRegression(C=np.inf, solver="newton-cholesky").fit(odds[:, None], of.y).coef_[0, 0])
        except ConvergenceWarning:
            raise NotComputable("no slope found: the log odds are too far apart") from None
        except LinAlgWarning:
            raise NotComputable("no slope found: the log odds hardly differ between examples") from None


def _calibration(of: Predicted) -> tuple[CalibrationBin, ...]:
    """The calibration curve of two classes over tenths of the examples; nothing for more classes, or with one only."""
    from sklearn.calibration import calibration_curve

    if of.task.kind is not TaskKind.CLASSES or of.values.shape[1] != 2 or len(np.unique(of.y)) < 2:
        return ()
    observed, predicted = calibration_curve(of.y, of.values[:, 1], n_bins=_CALIBRATION_BINS, strategy="quantile")
    pairs = zip(predicted, observed, strict=True)
    return tuple(CalibrationBin(predicted=float(mean), observed=float(share)) for mean, share in pairs)


def r2(of: Predicted) -> float:
    """Share of the test part's variance that is explained; below 0 for a model worse than the test part's mean."""
    if len(of.y) < 2 or is_constant(of.y.min(axis=0), of.y.max(axis=0)).any():
        raise NotComputable("the test part's targets do not vary")
    return float(_sklearn().r2_score(of.y, of.values))


def poisson_deviance(of: Predicted) -> float:
    """Mean deviance of counts from their rates."""
    if (of.values <= 0).any():
        raise NotComputable("the model predicts a rate of 0")
    return float(_sklearn().mean_poisson_deviance(of.y.reshape(-1), of.values.reshape(-1)))


def c_index(of: Predicted) -> float:
    """Harrell's concordance: of all pairs whose order of events is known, the share in the order of their risks."""
    from sksurv.metrics import concordance_index_censored

    event, time = _follow_up(of)
    if not event.any():
        raise NotComputable("the test part has no event")
    try:
        return float(concordance_index_censored(event, time, of.values[:, 0])[0])
    except ValueError:
        raise NotComputable("the test part has no two examples of which one is known to have its event first") from None


def integrated_brier(of: Predicted) -> float:
    """The Brier score of the survival curves, censoring weighted out, over the times between test events.

    The curves are the model's log hazards over Breslow's baseline hazard of this site's training part, whose follow-up
    also bounds the test examples that count.
    """
    from sksurv.metrics import integrated_brier_score
    from sksurv.util import Surv

    if of.train is None:
        raise NotComputable("there is no training part to estimate a baseline hazard of")
    seen, at = _follow_up(of.train)
    if not seen.any():
        raise NotComputable("the training part has no event")
    event, time = _follow_up(of)
    within = time < at.max()
    known = time[within & event]
    if len(np.unique(known)) < 2:
        raise NotComputable("the test part has fewer than two events within the training part's follow-up")
    centre, baseline = _breslow(of.train)
    curves = baseline.get_survival_function(of.values[within, 0] - centre)
    times = np.linspace(known.min(), np.nextafter(known.max(), 0), _CURVE_POINTS)
    survival = np.stack([curve(times) for curve in curves])
    tested = Surv.from_arrays(event[within], time[within])
    return float(integrated_brier_score(Surv.from_arrays(seen, at), tested, survival, times))


def log_baseline_hazard(of: Predicted, until: Array) -> Array:
    """The log of Breslow's cumulative baseline hazard at each time; -inf before the first event."""
    centre, baseline = _breslow(of)
    steps = baseline.cum_baseline_hazard_
    places = np.searchsorted(steps.x, until, side="right")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.concatenate([[0.0], steps.y])[places]) - centre)


def _breslow(of: Predicted) -> tuple[float, BreslowEstimator]:
    """The mean log hazard, and the estimate for log hazards without it, whose exponentials stay within range."""
    from sksurv.linear_model.coxph import BreslowEstimator

    seen, at = _follow_up(of)
    centre = of.values[:, 0].mean()
    return centre, BreslowEstimator().fit(of.values[:, 0] - centre, seen, at)


def _follow_up(of: Predicted) -> tuple[NDArray[np.bool_], Array]:
    """Return who has an event, bool[n], and the times, float64[n]."""
    return of.y[:, EVENT] > 0, of.y[:, TIME].astype(np.float64)


_OF_CLASSES: Final[dict[MetricName, Callable[[Labels, Array], float]]] = {
    MetricName.ACCURACY: lambda y, p: float(np.mean(y == p.argmax(axis=1))),
    MetricName.BALANCED_ACCURACY: balanced_accuracy,
    MetricName.AUROC: area_under_roc,
    MetricName.AUPRC: average_precision,
    MetricName.F1: f1,
    MetricName.LOG_LOSS: mean_log_loss,
    MetricName.BRIER: brier,
}
_OF_EVERY_CLASS: Final = frozenset({MetricName.AUROC, MetricName.AUPRC, MetricName.F1})
_OF_OTHERS: Final[dict[MetricName, Callable[[Predicted], float]]] = {
    MetricName.CALIBRATION_SLOPE: calibration_slope,
    MetricName.RMSE: lambda of: float(_sklearn().root_mean_squared_error(of.y, of.values)),
    MetricName.MAE: lambda of: float(_sklearn().mean_absolute_error(of.y, of.values)),
    MetricName.R2: r2,
    MetricName.POISSON_DEVIANCE: poisson_deviance,
    MetricName.C_INDEX: c_index,
    MetricName.INTEGRATED_BRIER: integrated_brier,
}
