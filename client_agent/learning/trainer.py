"""A site's computations from its own data: its updates (docs/protocol.md 2), also with noise over every record (19).

Everything is a function of its arguments: data, round and seed fix the batches, and the global random state of
torch is left as it was found.

In a round with noise the sum of clipped gradients of single records is in whole numbers, so that noise in whole numbers
covers it exactly. A gradient's coordinates are counted in grid steps and cut towards zero, so no record adds a vector
longer than ``limit`` steps; that is checked in whole numbers. One that is no number adds zeros.

Source: Abadi et al. 2016, "Deep learning with differential privacy", with the discrete Gaussian of Canonne, Kamath and
        Steinke 2020 in place of the continuous one, in whole numbers
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import floor
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import (
    ModelParts,
    Vector,
    constants_kept,
    flat_vector,
    least_examples,
    require_batches,
    shared_parameters,
    shared_statistics,
    training_mode,
)
from client_agent.learning.foreign_code import model_code
from client_agent.learning.losses import Batch, Loss, cross_entropy, training_loss
from client_agent.learning.models import private_state
from client_agent.learning.sampling import derived, drawn_rows, steps_of
from protocol.arithmetic.discrete_gaussian import discrete_gaussian
from protocol.arithmetic.ring import derive
from protocol.errors import UnusableUpdate
from protocol.messages.control import PrivacySpec, TrainingSpec

_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class LocalRound:
    """A round of local training: the update before clipping, float32[D], and the personal layers after it, float32[P].

    ``personal`` is empty for a model without personal layers.
    """

    update: Vector = field(repr=False)
    personal: Vector = field(repr=False)


def train_round(
    model: nn.Module,
    data: Examples,
    training: TrainingSpec,
    *,
    round: int,
    seed: int,
    device: torch.device,
    loss: Loss | None = None,
) -> LocalRound:
    """The update of one round and the personal layers after it; the model comes back as it was.

    ``gradient``: the gradient over one mini-batch; round r takes batch (r - 1) mod their number, and ``shuffled``
    batches are cut anew once all have been taken. ``local_sgd``: the sum of the steps over ``epochs`` passes,
    ``shuffled`` in an order fixed by seed, round and epoch. ``cycled`` batches are cut once from an order fixed by the
    seed alone. Each gradient includes l2 * parameters (shared ones only).

    A step is the gradient, or with ``momentum`` the velocity, which starts at zero in every round. With a decaying
    learning rate the update is multiplied by :func:`rate_factor`. So it is always (start - end) / local learning rate,
    the undecayed one: a server learning rate equal to the local one makes the average of the updates FedAvg's average
    of the models, in every round.

    ``loss`` is that of classes under the training specification if it is None. Personal layers take the same steps as
    the shared ones, and only their new values leave this function.
    """
    model.to(device)
    training_mode(model)
    require_batches(model, len(data), training.batch_size)
    chosen = loss or training_loss(training, data.y)
    least = least_examples(model)
    with private_randomness(seed, f"round {round}", device), constants_kept(model):
        if training.update == "gradient":
            rows = [gradient_rows(len(data), training, round, seed, least)]
        else:
            rows = epoch_rows(len(data), training, round, seed, least)
        batches = (take(data, batch, device) for batch in rows)
        return _steps(model, batches, training, rate_factor(training, round), chosen)


def rate_factor(training: TrainingSpec, round: int) -> float:
    """Return the factor of the local learning rate in a round, counted from 1."""
    if training.decay_every_rounds == 0:
        return 1.0
    return float(training.learning_rate_decay ** ((round - 1) // training.decay_every_rounds))


def epoch_rows(examples: int, training: TrainingSpec, round: int, seed: int, least: int = 1) -> list[NDArray[np.int64]]:
    """The rows of every mini-batch of a round of local SGD, in order; ``least`` as in :func:`gradient_rows`."""
    cycled = training.batches == "cycled"
    labels = ("batches" if cycled else f"round {round} epoch {epoch}" for epoch in range(training.epochs))
    orders = (derived(seed, label) for label in labels)
    return [rows for order in orders for rows in _batches(examples, training.batch_size, order, least)]


def gradient_rows(examples: int, training: TrainingSpec, round: int, seed: int, least: int = 1) -> NDArray[np.int64]:
    """The rows of the mini-batch that a round's gradient is computed on.

    Where fewer than ``least`` would be left over for the last batch of a pass, the one before takes them in.
    """
    passes, place = divmod(round - 1, len(_starts(examples, training.batch_size, least)))
    label = "batches" if passes == 0 or training.batches == "cycled" else f"batches of pass {passes}"
    return _batches(examples, training.batch_size, derived(seed, label), least)[place]


@contextmanager
def evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """The model is on the device and draws nothing; afterwards its training mode is what it was."""
    was_training = model.training
    model.to(device).eval()
    try:
        yield
    finally:
        model.train(was_training)


def all_of(data: Examples, device: torch.device) -> Iterator[Batch]:
    """All examples in order, as many at a time as a device holds."""
    for start in range(0, len(data), _AT_ONCE):
        yield take(data, np.arange(start, min(start + _AT_ONCE, len(data))), device)


def loss_gradient(model: nn.Module, data: Examples, device: torch.device, loss: Loss = cross_entropy) -> Vector:
    """Gradient of the mean loss over all of ``data`` by the shared parameters: float32[D] on the CPU.

    Without dropout and without l2; the model comes back as it was. The requester's probe of rules that ask for inner
    products, on its validation data (docs/protocol.md 8).

    Requires: at least one example
    """
    shared = [parameter for _, parameter in shared_parameters(model)]
    with evaluating(model, device):
        totals = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in shared]
        for batch in all_of(data, device):
            for total, part in zip(totals, gradients(model, shared, batch, loss), strict=True):
                total.add_(part.detach().double(), alpha=len(batch.y) / len(data))
    return flat_vector([*totals, *(torch.zeros_like(statistic) for _, statistic in shared_statistics(model))])


def gradients(model: nn.Module, parameters: Sequence[nn.Parameter], batch: Batch, loss: Loss) -> list[torch.Tensor]:
    """One gradient per parameter, on the device; zeros where the loss does not reach."""
    with model_code(model, "the loss or its gradient"):
        return list(torch.autograd.grad(loss(model, batch), parameters, materialize_grads=True))


class _LossOfOne(nn.Module):
    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model, Batch(X.unsqueeze(0), y.unsqueeze(0)))


def sample_gradients(model: nn.Module, batch: Batch, loss: Loss = cross_entropy) -> NDArray[np.float64]:
    """Each example's own gradient by the shared parameters, without penalties, in the order of the flat vector.

    Shapes: n examples -> float64[n, D]
    """
    of_one = _LossOfOne(model, loss)
    values = {f"model.{name}": parameter.detach() for name, parameter in shared_parameters(model)}

    def one(parameters: dict[str, torch.Tensor], X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, functional_call(of_one, parameters, (X, y)))

    with model_code(model, "the gradient of single examples"):
        found = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(values, batch.X, batch.y)
    return np.concatenate([found[name].flatten(1).cpu().numpy().astype(np.float64) for name in values], axis=1)


def _steps(model: nn.Module, batches: Iterable[Batch], training: TrainingSpec, factor: float, loss: Loss) -> LocalRound:
    """Take one step per batch; the shared parameters' steps are summed, then the model is put back."""
    parts = ModelParts.of(model)
    shared, personal = parts.shared, parts.personal
    before, own = parts.vector(), parts.personal_vector()
    totals = [torch.zeros_like(parameter) for parameter in shared]
    velocity: list[torch.Tensor] | None = None
    try:
        for batch in batches:
            step = gradients(model, [*shared, *personal], batch, loss)
            with torch.no_grad():
                if training.l2:
                    step[: len(shared)] = [g + training.l2 * p for g, p in zip(step, shared, strict=False)]
                if velocity is not None and training.momentum:
                    step = [s.add_(v, alpha=training.momentum) for s, v in zip(step, velocity, strict=True)]
                velocity = step
                for total, part in zip(totals, step, strict=False):
                    total.add_(part, alpha=factor)
                for parameter, part in zip([*shared, *personal], step, strict=True):
                    parameter.sub_(part, alpha=training.local_learning_rate * factor)
        return LocalRound(_with_statistics(parts, totals, before, training), parts.personal_vector())
    finally:
        parts.load(before, own)


def _with_statistics(parts: ModelParts, totals: list[torch.Tensor], before: Vector, training: TrainingSpec) -> Vector:
    """The update: the steps' sum, and behind it how far averaged statistics moved, over the server's learning rate."""
    steps = flat_vector(totals)
    moved = before[len(steps) :] - parts.vector()[len(steps) :]
    return np.concatenate([steps, moved / np.float32(training.server_learning_rate)])


def _batches(examples: int, batch_size: int, seed: int, least: int) -> list[NDArray[np.int64]]:
    """All rows once, shuffled by the seed, cut into batches; the last one may be shorter, or longer by what is left."""
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(seed)).numpy()
    starts = _starts(examples, batch_size, least)
    return [order[start:stop] for start, stop in zip(starts, [*starts[1:], examples], strict=False)]


def _starts(examples: int, batch_size: int, least: int) -> list[int]:
    starts = list(range(0, examples, batch_size))
    return starts[:-1] if len(starts) > 1 and examples - starts[-1] < least else starts


def take(data: Examples, rows: NDArray[np.int64], device: torch.device) -> Batch:
    """Some rows of the examples on the training device."""
    return Batch(torch.from_numpy(data.X[rows]).to(device), torch.from_numpy(data.y[rows]).to(device))


@contextmanager
def private_randomness(seed: int, purpose: str, device: torch.device) -> Iterator[None]:
    """Draw a model's random numbers (dropout) from seed and purpose; restores the global random state afterwards.

    On a GPU, convolutions run deterministically and in full float32 meanwhile, not in TF32.
    """
    drawn = derived(seed, purpose)
    devices = [device] if device.type == "cuda" else []
    full_precision = (
        torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False) if devices else nullcontext()
    )
    with private_state(devices), full_precision:
        # torch.manual_seed would also queue a call, with its stack, for every kind of device that is not here
        torch.default_generator.manual_seed(drawn)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(drawn)
        yield


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
