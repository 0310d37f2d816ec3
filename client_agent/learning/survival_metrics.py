"""Metrics of survival, scikit-survival's: does the order of risks hold, and do the survival curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sksurv.linear_model.coxph import BreslowEstimator
from sksurv.metrics import concordance_index_censored, integrated_brier_score
from sksurv.util import Surv

from client_agent.learning.predictions import NotComputable, Predicted
from client_agent.learning.scores import MetricName
from client_agent.learning.targets import EVENT, TIME

_POINTS: Final = 50


def c_index(of: Predicted) -> float:
    """Harrell's concordance: of all pairs whose order of events is known, the share in the order of their risks."""
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
    times = np.linspace(known.min(), np.nextafter(known.max(), 0), _POINTS)
    survival = np.stack([curve(times) for curve in curves])
    tested = Surv.from_arrays(event[within], time[within])
    return float(integrated_brier_score(Surv.from_arrays(seen, at), tested, survival, times))


def log_baseline_hazard(of: Predicted, until: NDArray[np.float64]) -> NDArray[np.float64]:
    """The log of Breslow's cumulative baseline hazard at each time; -inf before the first event."""
    centre, baseline = _breslow(of)
    steps = baseline.cum_baseline_hazard_
    places = np.searchsorted(steps.x, until, side="right")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.concatenate([[0.0], steps.y])[places]) - centre)


def _breslow(of: Predicted) -> tuple[float, BreslowEstimator]:
    """The mean log hazard, and the estimate for log hazards without it, whose exponentials stay within range."""
    seen, at = _follow_up(of)
    centre = of.values[:, 0].mean()
    return centre, BreslowEstimator().fit(of.values[:, 0] - centre, seen, at)


def _follow_up(of: Predicted) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return who has an event, bool[n], and the times, float64[n]."""
    return of.y[:, EVENT] > 0, of.y[:, TIME].astype(np.float64)


SURVIVAL_METRICS: Final[dict[MetricName, Callable[[Predicted], float]]] = {
    MetricName.C_INDEX: c_index,
    MetricName.INTEGRATED_BRIER: integrated_brier,
}
