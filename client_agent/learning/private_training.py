"""A round of local training in which noise covers every record (docs/protocol.md 19).

Source: Abadi et al. 2016, "Deep learning with differential privacy", with the discrete Gaussian of Canonne, Kamath and
        Steinke 2020 in place of the continuous one, in whole numbers

The sum of clipped gradients of single records in whole numbers, so that noise in whole numbers covers it exactly. A
gradient's coordinates are counted in grid steps and cut towards zero, so no record adds a vector longer than ``limit``
steps; that is checked in whole numbers. One that is no number adds zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import ModelParts, Vector
from client_agent.learning.layers import shared_parameters, training_mode
from client_agent.learning.losses import Batch, Loss
from client_agent.learning.sampling import drawn_rows, steps_of
from client_agent.learning.trainer import private_randomness, rate_factor, sample_gradients, take
from protocol.arithmetic.discrete_gaussian import discrete_gaussian
from protocol.arithmetic.ring import derive
from protocol.errors import UnusableUpdate
from protocol.messages.control import PrivacySpec, TrainingSpec

NOISE_STEPS: Final = 2**24
"""The noise's standard deviation in grid steps: a whole number, and far more than 1, so that cutting costs nothing."""
_MOST_ENTRIES: Final = 2**20
"""The most entries of single gradients at a time: so many stay near the processor."""
_SLACK: Final = 1 - 2**-10
"""Room for what the others' gradients change by in torch's last bits when one record is not in the batch."""

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """``step``: what one whole number stands for. ``limit``: the longest vector of one record, in steps."""

    step: float
    limit: int

    @classmethod
    def of(cls, privacy: PrivacySpec) -> Grid:
        """Noise of 2^24 steps is at least ``noise_multiplier`` times ``limit``."""
        step = privacy.noise_multiplier * privacy.clip / NOISE_STEPS
        return cls(step, floor(NOISE_STEPS / privacy.noise_multiplier))


def clipped_sum(model: nn.Module, batch: Batch, loss: Loss, grid: Grid) -> Integers:
    """Every record's gradient by the shared parameters, clipped to the grid's limit; their sum.

    Shapes:  n examples -> int64[D]
    Raises:  UnusableUpdate, should a clipped gradient be longer than the limit
    """
    size = sum(parameter.numel() for _, parameter in shared_parameters(model))
    total, at_once = np.zeros(size, np.int64), max(1, _MOST_ENTRIES // size)
    for start in range(0, len(batch.X), at_once):
        piece = Batch(batch.X[start : start + at_once], batch.y[start : start + at_once])
        total += _on_grid(sample_gradients(model, piece, loss), grid).sum(axis=0)
    return total


def _on_grid(gradients: NDArray[np.float64], grid: Grid) -> Integers:
    """Shapes: float64[n, D] -> int64[n, D], no row longer than the limit"""
    usable = np.isfinite(gradients).all(axis=1, keepdims=True)
    gradients = np.where(usable, gradients, 0.0) / grid.step
    lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
    factors = np.minimum(1.0, _SLACK * grid.limit / np.maximum(lengths, 1.0))
    whole: Integers = np.trunc(gradients * factors).astype(np.int64)
    if np.any(np.einsum("ij,ij->i", whole, whole) > grid.limit**2):
        raise UnusableUpdate("a clipped gradient is longer than its limit; nothing of this round leaves the site")
    return whole


def private_round(
    model: nn.Module,
    data: Examples,
    training: TrainingSpec,
    privacy: PrivacySpec,
    *,
    round: int,
    seed: bytes,
    device: torch.device,
    loss: Loss,
) -> Vector:
    """The update of one round before clipping, float32[D]; the model comes back as it was.

    As :func:`client_agent.learning.trainer.train_round`, but for the steps: each takes the records that ``seed`` draws,
    clips the gradient of each to ``record_clip``, adds noise in whole numbers, and divides by the batch size, not by
    how many were drawn. What follows (l2, momentum, the model's own steps) sees no record again.

    ``seed``: 32 secret bytes, used for this round alone; who has them can take the noise off.
    Reveals:  to whom the update is shown, no more about any record than the study's noise lets through
    """
    model.to(device)
    training_mode(model)
    parts, grid = ModelParts.of(model), Grid.of(privacy)
    before = parts.vector()
    factor = rate_factor(training, round)
    totals, velocity, now = np.zeros_like(before), np.zeros_like(before), before.copy()
    try:
        with private_randomness(int.from_bytes(derive(seed, "dropout")[:8], "big"), f"round {round}", device):
            for number in range(steps_of(len(data), training)):
                own = derive(seed, f"step {number}")
                step = _noised_gradient(model, data, training.batch_size, grid, own, device, loss)
                step += np.float32(training.l2) * now
                velocity = step + np.float32(training.momentum) * velocity
                totals += np.float32(factor) * velocity
                now = now - np.float32(training.local_learning_rate * factor) * velocity
                parts.load(now)
    finally:
        parts.load(before)
    return totals


def _noised_gradient(
    model: nn.Module, data: Examples, batch_size: int, grid: Grid, seed: bytes, device: torch.device, loss: Loss
) -> Vector:
    """The mean clipped gradient of the drawn records with noise, float32[D]."""
    rows = drawn_rows(len(data), batch_size, derive(seed, "rows"))
    noise = discrete_gaussian(ModelParts.of(model).vector().size, NOISE_STEPS, derive(seed, "noise"))
    summed = noise + clipped_sum(model, take(data, rows, device), loss, grid) if len(rows) else noise
    return (summed * (grid.step / batch_size)).astype(np.float32)
