"""A round of local training in which noise covers every record (docs/protocol.md 19).

Source: Abadi et al. 2016, "Deep learning with differential privacy", with the discrete Gaussian of Canonne, Kamath and
        Steinke 2020 in place of the continuous one, in whole numbers
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from client_agent.architectures.statistics import training_mode
from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import ModelParts, Vector
from client_agent.learning.private.clipped_gradients import NOISE_STEPS, Grid, clipped_sum
from client_agent.learning.private.drawn_rows import drawn_rows, steps_of
from client_agent.learning.trainer import private_randomness, rate_factor, take
from client_agent.tasks.losses import Loss
from protocol.arithmetic.discrete_gaussian import discrete_gaussian
from protocol.arithmetic.ring import derive
from protocol.messages.control import PrivacySpec, TrainingSpec


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
