"""Metrics that others bring: ``[case] metrics`` names them, the requester's own examples are measured by them.

A metric is a function of the model's outputs, float32[n, K], and the targets of the same examples, as arrays; it gives
a number. What it cannot compute is missing in that round, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from client_agent.learning.evaluation import OwnMetrics
from client_agent.scoring.score import Score
from client_agent.tasks.losses import Batch
from host.extensions import Kind, extension
from protocol.errors import ConfigurationError

Metric = Callable[[Any, Any], object]


def own_metrics(names: Sequence[str]) -> OwnMetrics | None:
    """All of them over some examples; None for no name. Raises: ConfigurationError for what is not there"""
    found = [(name, _function(name)) for name in names]
    if not found:
        return None

    def measured(model: nn.Module, batch: Batch) -> tuple[Score, ...]:
        with torch.no_grad():
            outputs = model(batch.X).cpu().numpy()
        targets = batch.y.cpu().numpy()
        return tuple(_score(name, function, outputs, targets) for name, function in found)

    return measured


def _function(name: str) -> Metric:
    found = extension(Kind.METRIC, name).load()
    if not callable(found):
        raise ConfigurationError(
            f"metric {name!r}: found {type(found).__name__}, expected a function of outputs and targets"
        )
    function: Metric = found
    return function


def _score(name: str, function: Metric, outputs: object, targets: object) -> Score:
    try:
        value = float(np.asarray(function(outputs, targets), np.float64))
    except Exception as error:  # whatever foreign code raises
        return Score(name=name, value=None, reason=f"{type(error).__name__}: {error}")
    finite = math.isfinite(value)
    return Score(name=name, value=value if finite else None, reason="" if finite else "it gave no finite number")
