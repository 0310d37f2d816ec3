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
from torch.func import functional_call, grad, vmap

from client_agent.learning.data import Examples
from client_agent.learning.layers import has_statistics, shared_parameters
from client_agent.learning.losses import Batch, Loss, cross_entropy, training_loss
from client_agent.learning.sampling import derived
from client_agent.learning.trainer import epoch_rows, gradient_rows, rate_factor, take, train_round
from protocol.arithmetic.fixed_point import clip
from protocol.errors import UnusableUpdate
from protocol.messages.control import TrainingSpec


def sample_gradients(model: nn.Module, batch: Batch) -> NDArray[np.float64]:
    """Return gradients of the log-loss, without penalties, at the model as it is, in the order of the flat vector.

    Shapes:   n examples -> float64[n, D]
    """
    shared = {name: parameter.detach() for name, parameter in shared_parameters(model)}

    def one(parameters: dict[str, torch.Tensor], X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        answers = functional_call(model, parameters, (X.unsqueeze(0),))
        return nn.functional.cross_entropy(answers, y.unsqueeze(0))

    found = vmap(grad(one), in_dims=(None, 0, 0))(shared, batch.X, batch.y)
    return np.concatenate([found[name].flatten(1).cpu().numpy().astype(np.float64) for name in shared], axis=1)


SPLITS: Final = 4
"""Into halves; each costs as much as a round of local training."""
_MOST_ENTRIES: Final = 2**25
"""The most entries of per-sample gradients in memory; larger ones are taken in halves."""
_FEWEST: Final = 4
"""Examples from which a batch tells its own noise; a smaller one is as noisy as the site's examples say."""

Reals = NDArray[np.float64]


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
        return _scaled(_from_halves(model, data, training, round, seed, device, clip_norm, chosen), len(data), rows)
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
    """One estimate for every split."""
    differences = half_differences(model, data, training, round, seed, device, clip_norm, loss)
    found = [float(np.sum(one**2)) for one in differences]
    return _finite(float(np.mean(found)), float(np.std(found, ddof=1)) / math.sqrt(SPLITS))


def half_differences(
    model: nn.Module,
    data: Examples,
    training: TrainingSpec,
    round: int,
    seed: int,
    device: torch.device,
    clip_norm: float,
    loss: Loss,
) -> list[Reals]:
    """Return, for every split, sqrt(n_a n_b) / n times the difference of the halves' updates, float64[D].

    The squares of a coordinate are its variance on average, so those of a layer add up to the layer's part of v_0.
    Raises: UnusableUpdate
    """
    n, found = len(data), []
    whole = training.model_copy(update={"batch_size": n}) if training.update == "gradient" else training
    for split in range(SPLITS):
        order = np.random.default_rng(derived(seed, f"halves of round {round}, split {split}")).permutation(n)
        halves: Sequence[NDArray[np.int64]] = np.array_split(order, 2)
        ends: list[Reals] = []
        for half in halves:
            own = Examples(data.X[half], data.y[half])
            numbered = 1 if training.update == "gradient" else round
            trained = train_round(model, own, whole, round=numbered, seed=seed, device=device, loss=loss)
            scale = _steps(n, training, seed) / _steps(len(half), training, seed)
            update = trained.update.astype(np.float64) * scale
            ends.append(clip(update, clip_norm)[0])
        found.append(math.sqrt(len(halves[0]) * len(halves[1])) / n * (ends[0] - ends[1]))
    return found


def _scaled(noise: UpdateNoise, examples: int, rows: NDArray[np.int64]) -> UpdateNoise:
    """Scale the mean over ``examples`` to that over a batch of so many rows."""
    factor = examples / len(rows)
    return UpdateNoise(noise.variance * factor, noise.error * factor)


def _steps(examples: int, training: TrainingSpec, seed: int) -> int:
    return 1 if training.update == "gradient" else len(epoch_rows(examples, training, 1, seed))


def _random(model: nn.Module) -> bool:
    """Return whether two passes over the same example may differ."""
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())


def _finite(variance: float, error: float) -> UpdateNoise:
    if not (math.isfinite(variance) and math.isfinite(error)):
        raise UnusableUpdate("the noise of the update is no number: the model has diverged; take a smaller rate")
    return UpdateNoise(variance, error)
