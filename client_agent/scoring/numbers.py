"""Metrics of predicted numbers and counts, scikit-learn's; several outputs are averaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sklearn import metrics

from client_agent.scoring.predicted import NotComputable, Predicted
from client_agent.scoring.score import MetricName
from protocol.summary.table_one import is_constant


def rmse(of: Predicted) -> float:
    """Root of the mean squared error, in the target's unit."""
    return float(metrics.root_mean_squared_error(of.y, of.values))


def mae(of: Predicted) -> float:
    """Mean absolute error, in the target's unit."""
    return float(metrics.mean_absolute_error(of.y, of.values))


def r2(of: Predicted) -> float:
    """Share of the test part's variance that is explained; below 0 for a model worse than the test part's mean."""
    if len(of.y) < 2 or is_constant(of.y.min(axis=0), of.y.max(axis=0)).any():
        raise NotComputable("the test part's targets do not vary")
    return float(metrics.r2_score(of.y, of.values))


def poisson_deviance(of: Predicted) -> float:
    """Mean deviance of counts from their rates."""
    if (of.values <= 0).any():
        raise NotComputable("the model predicts a rate of 0")
    return float(metrics.mean_poisson_deviance(of.y.reshape(-1), of.values.reshape(-1)))


METRICS: Final[dict[MetricName, Callable[[Predicted], float]]] = {
    MetricName.RMSE: rmse,
    MetricName.MAE: mae,
    MetricName.R2: r2,
    MetricName.POISSON_DEVIANCE: poisson_deviance,
}
