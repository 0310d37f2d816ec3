"""What noise costs a site: drawing it, and training with it beside training without."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.personal import shared_parameters
from client_agent.learning.private.clipped_gradients import NOISE_STEPS, Grid, clipped_sum
from client_agent.learning.trainer import gradients, take
from client_agent.tasks.losses import Batch, cross_entropy
from harness.engine.training import one_thread
from protocol.arithmetic.discrete_gaussian import discrete_gaussian
from protocol.wire.messages import PrivacySpec

_TIMES: Final = 5
_FEATURES: Final = 784
_CLASSES: Final = 10
_CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class NoiseCost:
    """CPU nanoseconds, the fastest of five: of one drawn number, and per record and parameter of a batch of gradients.

    ``clipped_ns``: record by record, clipped and summed in whole numbers; ``plain_ns``: the batch's mean gradient.
    """

    parameters: int
    examples: int
    drawn_ns: float
    clipped_ns: float
    plain_ns: float


def benchmark_noise(parameters: int, examples: int) -> NoiseCost:
    """With one thread; gradients are those of a softmax regression of 7,850 parameters."""
    random = np.random.default_rng(0)
    X = random.normal(size=(examples, _FEATURES)).astype(np.float32)
    data = Examples(X, random.integers(0, _CLASSES, size=examples))
    model = build_model(model_spec("linear", (_FEATURES,), (), _CLASSES), 0)
    shared = [parameter for _, parameter in shared_parameters(model)]
    batch, size = take(data, np.arange(examples), _CPU), sum(parameter.numel() for parameter in shared)
    grid = Grid.of(PrivacySpec(record_clip=1.0, noise_multiplier=1.0))
    with one_thread():
        drawn = _fastest(lambda: discrete_gaussian(parameters, NOISE_STEPS, bytes(32)))
        clipped = _fastest(lambda: clipped_sum(model, batch, cross_entropy, grid))
        plain = _fastest(lambda: _plain(model, shared, batch))
    each = examples * size
    return NoiseCost(parameters, examples, drawn / parameters, clipped / each, plain / each)


def noise_text(cost: NoiseCost) -> str:
    """The figures, one a line."""
    return "\n".join(
        (
            f"one draw of exact discrete Gaussian noise: {cost.drawn_ns:.0f} ns of CPU ({cost.parameters:,} at once)",
            f"gradients of {cost.examples} records, clipped each: {cost.clipped_ns:.2f} ns per record and parameter",
            f"their mean gradient without clipping: {cost.plain_ns:.3f} ns per record and parameter",
        )
    )


def _plain(model: nn.Module, shared: list[nn.Parameter], batch: Batch) -> object:
    return gradients(model, shared, batch, cross_entropy)


def _fastest(work: Callable[[], object]) -> float:
    """CPU nanoseconds, after one call for what is compiled at first."""
    work()
    found = []
    for _ in range(_TIMES):
        began = time.process_time_ns()
        work()
        found.append(time.process_time_ns() - began)
    return float(min(found))
