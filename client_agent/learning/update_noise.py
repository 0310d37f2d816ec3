"""The noise of the requester's own update: v_0 = tr Cov(g_0) of the clipped update, and how well that is known.

What other examples from the same patients would change, on the same batches; it never leaves the requester. For one
gradient of the built-in loss it comes from per-sample gradients; for local SGD, and losses that do not fall apart into
examples, from random halves of the data: each half takes the round's steps on its own examples, one pass as ever, so
half as many, and the two sums, scaled to the whole's number of steps, differ by four times v_0 on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import has_statistics, shared_parameters
from client_agent.learning.losses import Loss, cross_entropy, training_loss
from client_agent.learning.sampling import derived
from client_agent.learning.trainer import epoch_rows, gradient_rows, rate_factor, sample_gradients, take, train_round
from protocol.arithmetic.fixed_point import clip
from protocol.errors import UnusableUpdate
from protocol.messages.control import TrainingSpec

SPLITS: Final = 4
"""Into halves; each costs as much as a round of local training."""
_MOST_ENTRIES: Final = 2**25
"""The most entries of per-sample gradients in memory; larger ones are taken in halves."""
_FEWEST: Final = 4
"""Examples from which a batch tells its own noise; a smaller one is as noisy as the site's examples say."""


@dataclass(frozen=True)
class UpdateNoise:
    """``variance`` v_0, in squared units of the update, and ``error``, its standard error."""

    variance: float
    error: float


def update_noise(
    model: nn.Module,
    data: Examples,
    training: TrainingSpec,
    *,
    round: int,
    seed: int,
    device: torch.device,
    clip_norm: float,
    loss: Loss | None = None,
) -> UpdateNoise:
    """Estimate the noise of the update that :func:`train_round` gives for the same arguments, clipped to ``clip_norm``.

    Raises: UnusableUpdate with fewer than two examples, for a model with batch norm, or when an update is no number
    """
    if len(data) < 2:
        raise UnusableUpdate("the noise of an update needs two training examples at least: weigh sites by another rule")
    if has_statistics(model):
        raise UnusableUpdate(
            "the noise of an update comes from single examples and from halves of the data, and batch norm mixes "
            "the examples of a batch: take GroupNorm, or weigh sites by another rule"
        )
    chosen = loss or training_loss(training, data.y)
    if training.update == "gradient":
        rows = gradient_rows(len(data), training, round, seed)
        size = sum(parameter.numel() for _, parameter in shared_parameters(model))
        spread = rows if len(rows) >= _FEWEST else np.arange(len(data))
        if chosen is cross_entropy and not _random(model) and size * len(spread) <= _MOST_ENTRIES:
            return _from_samples(model, data, training, rows, spread, rate_factor(training, round), device, clip_norm)
        data = data if len(rows) < _FEWEST else Examples(data.X[rows], data.y[rows])
        noise = _from_halves(model, data, training, round, seed, device, clip_norm, chosen)
        factor = len(data) / len(rows)  # from a mean over all of data to one over a batch
        return UpdateNoise(noise.variance * factor, noise.error * factor)
    return _from_halves(model, data, training, round, seed, device, clip_norm, chosen)


def _from_samples(
    model: nn.Module,
    data: Examples,
    training: TrainingSpec,
    rows: NDArray[np.int64],
    spread: NDArray[np.int64],
    factor: float,
    device: torch.device,
    clip_norm: float,
) -> UpdateNoise:
    """tr Cov of the batch's mean gradient; clipping shrinks it and removes what lies along the gradient.

    How much it shrinks is uncertain too, by the deviation of the gradient's length: part of the error.
    """
    model.to(device)
    each = sample_gradients(model, take(data, spread, device)) * factor
    deviations = each - each.mean(axis=0)
    flat = np.concatenate([p.detach().flatten().cpu().numpy().astype(np.float64) for _, p in shared_parameters(model)])
    whole = each[np.isin(spread, rows)].mean(axis=0) + factor * training.l2 * flat
    length = float(np.linalg.norm(whole))
    shortened = 0.0
    if length > clip_norm:
        along = deviations @ whole / length
        deviations = (deviations - np.outer(along, whole) / length) * (clip_norm / length)
        shortened = 2 * float(along.std()) / math.sqrt(len(rows)) / length
    squares = np.sum(deviations**2, axis=1) * (len(spread) / (len(spread) - 1))
    variance = float(squares.mean()) / len(rows)
    error = float(squares.std()) / math.sqrt(len(spread)) / len(rows)
    return _finite(variance, math.hypot(error, shortened * variance))


def _from_halves(
    model: nn.Module,
    data: Examples,
    training: TrainingSpec,
    round: int,
    seed: int,
    device: torch.device,
    clip_norm: float,
    loss: Loss,
) -> UpdateNoise:
    """One estimate for every split: n_a n_b / n^2 times the squared difference of the halves' updates."""
    n, found = len(data), []
    one_gradient = training.update == "gradient"
    whole = training.model_copy(update={"batch_size": n}) if one_gradient else training
    for split in range(SPLITS):
        order = np.random.default_rng(derived(seed, f"halves of round {round}, split {split}")).permutation(n)
        halves: Sequence[NDArray[np.int64]] = np.array_split(order, 2)
        ends: list[NDArray[np.float64]] = []
        for half in halves:
            own = Examples(data.X[half], data.y[half])
            numbered = 1 if one_gradient else round
            trained = train_round(model, own, whole, round=numbered, seed=seed, device=device, loss=loss)
            scale = _steps(n, training, seed) / _steps(len(half), training, seed)
            ends.append(clip(trained.update.astype(np.float64) * scale, clip_norm)[0])
        difference = math.sqrt(len(halves[0]) * len(halves[1])) / n * (ends[0] - ends[1])
        found.append(float(np.sum(difference**2)))
    return _finite(float(np.mean(found)), float(np.std(found, ddof=1)) / math.sqrt(SPLITS))


def _steps(examples: int, training: TrainingSpec, seed: int) -> int:
    return 1 if training.update == "gradient" else len(epoch_rows(examples, training, 1, seed))


def _random(model: nn.Module) -> bool:
    """Return whether two passes over the same example may differ."""
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())


def _finite(variance: float, error: float) -> UpdateNoise:
    if not (math.isfinite(variance) and math.isfinite(error)):
        raise UnusableUpdate("the noise of the update is no number: the model has diverged; take a smaller rate")
    return UpdateNoise(variance, error)
