"""Metrics of classes and of labels, as scikit-learn's; several labels are scored one by one and averaged."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning
from sklearn import metrics
from sklearn.calibration import calibration_curve
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from client_agent.scoring.followed import Labels, area_under_roc, mean_log_loss, share_right
from client_agent.scoring.predicted import Array, NotComputable, Predicted
from client_agent.scoring.score import CalibrationBin, MetricName
from protocol.messages.control import TaskKind

_BINS: Final = 10


def accuracy(of: Predicted) -> float:
    return _averaged(of, lambda y, p: share_right(y, _chosen(p)))


def balanced_accuracy(of: Predicted) -> float:
    """The mean of the classes' recalls, over the classes that are there."""

    def score(y: Labels, p: Array) -> float:
        return float(metrics.recall_score(y, _chosen(p), labels=np.unique(y), average="macro", zero_division=0))

    return _averaged(of, score)


def auroc(of: Predicted) -> float:
    def score(y: Labels, p: Array) -> float:
        _require_every_class(y, p)
        return area_under_roc(y, p)

    return _averaged(of, score)


def auprc(of: Predicted) -> float:
    """Average precision."""

    def score(y: Labels, p: Array) -> float:
        _require_every_class(y, p)
        if p.shape[1] == 2:
            return float(metrics.average_precision_score(y, p[:, 1]))
        return float(metrics.average_precision_score(np.eye(p.shape[1])[y], p, average="macro"))

    return _averaged(of, score)


def f1(of: Predicted) -> float:
    def score(y: Labels, p: Array) -> float:
        _require_every_class(y, p)
        average = "binary" if p.shape[1] == 2 else "macro"
        return float(metrics.f1_score(y, _chosen(p), average=average, zero_division=0))

    return _averaged(of, score)


def log_loss(of: Predicted) -> float:
    return _averaged(of, mean_log_loss)


def brier(of: Predicted) -> float:
    """Mean squared difference to the truth; between 0 and 1 for two classes, and 2 for more."""

    def score(y: Labels, p: Array) -> float:
        if p.shape[1] == 2:
            return float(metrics.brier_score_loss(y, p[:, 1], pos_label=1))
        return float(metrics.brier_score_loss(y, p, labels=np.arange(p.shape[1])))

    return _averaged(of, score)


def calibration_slope(of: Predicted) -> float:
    """The slope of a logistic regression of the classes on the model's log odds: 1 calibrated, less overconfident."""
    if of.values.shape[1] != 2:
        raise NotComputable("a calibration slope is of two classes")
    _require_every_class(of.y, of.values)
    odds = (of.outputs[:, 1].astype(np.float64) - of.outputs[:, 0])[:, None]
    if metrics.roc_auc_score(of.y, odds[:, 0]) in (0.0, 1.0):
        raise NotComputable("the classes are wholly separated, so any slope fits")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        warnings.simplefilter("error", LinAlgWarning)
        try:
            return float(LogisticRegression(C=np.inf, solver="newton-cholesky").fit(odds, of.y).coef_[0, 0])
        except ConvergenceWarning:
            raise NotComputable("no slope found: the log odds are too far apart") from None
        except LinAlgWarning:
            raise NotComputable("no slope found: the log odds hardly differ between examples") from None


def calibration(of: Predicted) -> tuple[CalibrationBin, ...]:
    """The calibration curve of two classes over tenths of the examples; nothing for more classes, or with one only."""
    if of.task.kind is not TaskKind.CLASSES or of.values.shape[1] != 2 or len(np.unique(of.y)) < 2:
        return ()
    observed, predicted = calibration_curve(of.y, of.values[:, 1], n_bins=_BINS, strategy="quantile")
    pairs = zip(predicted, observed, strict=True)
    return tuple(CalibrationBin(predicted=float(mean), observed=float(share)) for mean, share in pairs)


def _averaged(of: Predicted, score: Callable[[Labels, Array], float]) -> float:
    """The score of the classes, or its mean over labels, each as two classes."""
    if of.task.kind is TaskKind.CLASSES:
        return score(of.y, of.values)
    labels = zip(of.y.T.astype(np.int64), of.values.T, strict=True)
    return float(np.mean([score(y, np.stack([1 - p, p], axis=1)) for y, p in labels]))


def _chosen(probabilities: Array) -> NDArray[np.int64]:
    return np.asarray(np.argmax(probabilities, axis=1), dtype=np.int64)


def _require_every_class(y: Labels, p: Array) -> None:
    missing = sorted(set(range(p.shape[1])) - set(np.unique(y).tolist()))
    if missing:
        raise NotComputable(f"the test part has no example of class {', '.join(map(str, missing))}")


METRICS: Final[dict[MetricName, Callable[[Predicted], float]]] = {
    MetricName.ACCURACY: accuracy,
    MetricName.BALANCED_ACCURACY: balanced_accuracy,
    MetricName.AUROC: auroc,
    MetricName.AUPRC: auprc,
    MetricName.F1: f1,
    MetricName.LOG_LOSS: log_loss,
    MetricName.BRIER: brier,
    MetricName.CALIBRATION_SLOPE: calibration_slope,
}
