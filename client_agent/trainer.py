"""What a site computes from its own data: updates, the applied aggregate, accuracy (docs/protocol.md 2, 10).

Everything is a function of its arguments: data, round and seed fix the batches, and the global random state of
torch is left as it was found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.data import Examples
from client_agent.update import Vector, flat_vector, load_vector, model_vector
from protocol.wire.messages import TrainingSpec

EVALUATION_BATCH = 1024


class Batch(NamedTuple):
    """Some examples on the training device."""

    X: torch.Tensor
    y: torch.Tensor


Loss = Callable[[nn.Module, Batch], torch.Tensor]


@dataclass(frozen=True)
class Evaluation:
    """Share of right answers, and mean loss, pooled over all examples."""

    accuracy: float
    loss: float


def cross_entropy(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean negative log-likelihood of the built-in models."""
    return nn.functional.cross_entropy(model(batch.X), batch.y)


def site_seed(study_seed: int, site: str) -> int:
    """The seed of one site's training order, from the study's seed; 63 bits."""
    return _derived(study_seed, f"site {site}")


def compute_update(
    model: nn.Module,
    data: Examples,
    training: TrainingSpec,
    *,
    round: int,
    seed: int,
    device: torch.device,
    loss: Loss = cross_entropy,
) -> Vector:
    """The update of one round, before clipping: float32[D] on the CPU; the model comes back as it was.

    ``gradient``: the gradient over one mini-batch; the batches are cut once from an order fixed by the seed, and
    round r takes batch (r - 1) mod their number. ``local_sgd``: the sum of the step gradients over ``epochs``
    passes, each in an order fixed by seed, round and epoch. Each gradient includes l2 * parameters.
    """
    model.to(device)
    model.train()
    with _private_randomness(_derived(seed, f"round {round}"), device):
        if training.update == "gradient":
            batch = _take(data, gradient_rows(len(data), training.batch_size, round, seed), device)
            return flat_vector(_gradient(model, batch, training.l2, loss))
        return flat_vector(_local_sgd(model, data, training, round, seed, device, loss))


def gradient_rows(examples: int, batch_size: int, round: int, seed: int) -> NDArray[np.int64]:
    """The rows of the mini-batch that a round's gradient is computed on."""
    batches = _batches(examples, batch_size, _derived(seed, "batches"))
    return batches[(round - 1) % len(batches)]


def apply_aggregate(vector: Vector, aggregate: Vector, server_lr: float) -> Vector:
    """vector - server_lr * aggregate: element-wise, in float32, in this order, on the CPU, so that all sites agree."""
    step = np.multiply(np.float32(server_lr), aggregate, dtype=np.float32)
    return np.subtract(vector, step, dtype=np.float32)


def evaluate(model: nn.Module, data: Examples, device: torch.device, loss: Loss = cross_entropy) -> Evaluation:
    """Accuracy and loss over ``data``, which must not be empty; the model's training mode is restored."""
    was_training = model.training
    model.to(device)
    model.eval()
    right, total_loss = 0, 0.0
    with torch.no_grad():
        for start in range(0, len(data), EVALUATION_BATCH):
            rows = np.arange(start, min(start + EVALUATION_BATCH, len(data)))
            batch = _take(data, rows, device)
            right += int((model(batch.X).argmax(dim=1) == batch.y).sum())
            total_loss += float(loss(model, batch)) * len(rows)
    model.train(was_training)
    return Evaluation(right / len(data), total_loss / len(data))


def _gradient(model: nn.Module, batch: Batch, l2: float, loss: Loss) -> list[torch.Tensor]:
    """One gradient a parameter, on the device; zeros where the loss does not reach."""
    model.zero_grad(set_to_none=True)
    loss(model, batch).backward()  # type: ignore[no-untyped-call]
    gradient = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return [g + l2 * p.detach() for g, p in zip(gradient, model.parameters(), strict=True)] if l2 else gradient


def _local_sgd(
    model: nn.Module,
    data: Examples,
    training: TrainingSpec,
    round_number: int,
    seed: int,
    device: torch.device,
    loss: Loss,
) -> list[torch.Tensor]:
    start = model_vector(model)
    totals = [torch.zeros_like(parameter) for parameter in model.parameters()]
    try:
        for epoch in range(training.epochs):
            order = _derived(seed, f"round {round_number} epoch {epoch}")
            for rows in _batches(len(data), training.batch_size, order):
                steps = _gradient(model, _take(data, rows, device), training.l2, loss)
                with torch.no_grad():
                    for parameter, total, step in zip(model.parameters(), totals, steps, strict=True):
                        total.add_(step)
                        parameter.sub_(step, alpha=training.local_learning_rate)
    finally:
        load_vector(model, start)
    return totals


def _batches(examples: int, batch_size: int, seed: int) -> list[NDArray[np.int64]]:
    """All rows once, shuffled by the seed, cut into batches; the last one may be shorter."""
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(seed)).numpy()
    return [order[start : start + batch_size] for start in range(0, examples, batch_size)]


def _take(data: Examples, rows: NDArray[np.int64], device: torch.device) -> Batch:
    return Batch(torch.from_numpy(data.X[rows]).to(device), torch.from_numpy(data.y[rows]).to(device))


@contextmanager
def _private_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """What a model draws (dropout) comes from the seed; the global random state is put back afterwards.

    On a GPU, convolutions run deterministically and in full float32 meanwhile, not in TF32.
    """
    devices = [device] if device.type == "cuda" else []
    full_precision = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
    with torch.random.fork_rng(devices=devices), full_precision:
        torch.manual_seed(seed)
        yield


def _derived(seed: int, label: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {label}".encode()).digest()[:8], "big") >> 1
