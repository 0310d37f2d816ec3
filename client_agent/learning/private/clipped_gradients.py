"""The sum of clipped gradients of single records in whole numbers, so that noise in whole numbers covers it exactly.

A gradient's coordinates are counted in grid steps and cut towards zero, so no record adds a vector longer than
``limit`` steps; that is checked in whole numbers. One that is no number adds zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

from client_agent.learning.foreign_code import model_code
from client_agent.learning.personal import shared_parameters
from client_agent.tasks.losses import Batch, Loss
from protocol.errors import UnusableUpdate
from protocol.messages.control import PrivacySpec

NOISE_STEPS: Final = 2**24
"""The noise's standard deviation in grid steps: a whole number, and far more than 1, so that cutting costs nothing."""
_MOST_ENTRIES: Final = 2**20
"""Of single gradients at a time: so many stay near the processor."""
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


class _LossOfOne(nn.Module):
    """A model with its loss behind it, for one example."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model, Batch(X.unsqueeze(0), y.unsqueeze(0)))


def clipped_sum(model: nn.Module, batch: Batch, loss: Loss, grid: Grid) -> Integers:
    """Every record's gradient by the shared parameters, clipped to the grid's limit; their sum.

    Shapes:  n examples -> int64[D]
    Raises:  UnusableUpdate, should a clipped gradient be longer than the limit
    """
    names, size = zip(*((name, one.numel()) for name, one in shared_parameters(model)), strict=True)
    total, at_once = np.zeros(sum(size), np.int64), max(1, _MOST_ENTRIES // sum(size))
    for start in range(0, len(batch.X), at_once):
        piece = Batch(batch.X[start : start + at_once], batch.y[start : start + at_once])
        total += _on_grid(_gradients(model, names, piece, loss), grid).sum(axis=0)
    return total


def _gradients(model: nn.Module, names: tuple[str, ...], batch: Batch, loss: Loss) -> NDArray[np.float64]:
    """Return each record's own gradient. Shapes: -> float64[n, D]"""
    of_one = _LossOfOne(model, loss)
    values = {f"model.{name}": dict(model.named_parameters())[name].detach() for name in names}

    def one(parameters: dict[str, torch.Tensor], X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, functional_call(of_one, parameters, (X, y)))

    with model_code(model, "the gradient of single examples"):
        found = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(values, batch.X, batch.y)
    flat = torch.cat([found[f"model.{name}"].flatten(1) for name in names], dim=1)
    return np.asarray(flat.cpu().numpy(), np.float64)


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
