"""The baseline hazard that turns a log hazard into the probability of having no event until a horizon.

Breslow's estimate on the training rows of the site that exports, no other site's. The whole curve has a step at every
patient's event, so it lists event times; what leaves the site with the model is its value at a few horizons that the
exporting person names, with a least number of events between any two.

Source: Breslow 1974, Covariance analysis of censored survival data
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from client_agent.learning.data import EVENT, TIME
from client_agent.learning.evaluation import evaluate
from client_agent.learning.losses import task_loss
from client_agent.learning.metrics import Predicted, log_baseline_hazard
from client_agent.learning.plugin import fitting_data, study_plugin
from client_agent.model.site_model import HeldModel
from protocol.errors import ConfigurationError
from protocol.messages.control import TaskKind

LEAST_EVENTS: Final = 5
"""Events up to the first horizon, and between any two: a step of fewer would show single patients."""


class Horizon(BaseModel):
    """A ``time`` in the data's own unit, and the log of the cumulative baseline hazard up to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    time: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    log_hazard: Annotated[float, Field(allow_inf_nan=False)]


def survival(baseline: Sequence[Horizon], log_hazards: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probability of having no event until each horizon. Shapes: float64[n] -> float64[n, horizons]"""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-np.exp(log_hazards[:, None] + np.array([one.log_hazard for one in baseline]))))


def fit_baseline(held: HeldModel, data: Path, plugin: Path | None, times: Sequence[float]) -> tuple[Horizon, ...]:
    """The baseline of a model at these horizons, from the site's own training rows; nothing for no horizon.

    Raises: ConfigurationError for a task without survival, and horizons that rest on too few events
    """
    if not times:
        return ()
    if held.study.task.kind is not TaskKind.SURVIVAL:
        raise ConfigurationError(f"--horizon: study {held.study.name!r} predicts no survival; leave it out")
    horizons = sorted(set(times))
    if not all(math.isfinite(time) and time > 0 for time in horizons):
        raise ConfigurationError("--horizon: give times above 0, in the unit of the study's times")
    train = fitting_data(held.study, data, study_plugin(held.study, plugin)).train
    until = np.array(horizons, np.float32)  # as the times are kept, so that an event at a horizon counts
    _require_events(train.y, until)
    outputs = evaluate(held.network, train, torch.device("cpu"), task_loss(held.study.task)).outputs
    assert outputs is not None  # a survival model gives [n, 1], or the study was refused
    found = log_baseline_hazard(Predicted(held.study.task, outputs, train.y), until.astype(np.float64))
    if not np.isfinite(found).all():
        raise ConfigurationError(f"--horizon: the model of study {held.study.name!r} has diverged: leave it out")
    return tuple(Horizon(time=time, log_hazard=float(one)) for time, one in zip(horizons, found, strict=True))


def _require_events(y: NDArray[np.float32], until: NDArray[np.float32]) -> None:
    if until[-1] > y[:, TIME].max():
        raise ConfigurationError(f"--horizon {until[-1]:g}: this site followed no training patient that long")
    counts = np.array([np.sum((y[:, EVENT] > 0) & (y[:, TIME] <= time)) for time in until])
    few = np.flatnonzero(np.diff(counts, prepend=0) < LEAST_EVENTS)
    if len(few):
        since = f"between {until[few[0] - 1]:g} and {until[few[0]]:g}" if few[0] else f"up to {until[0]:g}"
        raise ConfigurationError(
            f"--horizon {until[few[0]]:g}: fewer than {LEAST_EVENTS} training patients of this site have their event "
            f"{since}, and the step would show single patients: name fewer or later horizons"
        )
