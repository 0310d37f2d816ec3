"""Train all sites of a round in one batched call.

Every site's parameters are a row of a stack. Step t takes each site's own t-th mini-batch, padded to the batch size
with examples of weight 0; a site that has no t-th mini-batch stands still. The batches, the loss and the steps are
those of the sites one by one, so the results agree up to the order of float additions; dropout draws other masks, from
the same seeds.

For a GPU, where many small networks cost little more than one. On a CPU it saves no time: the stack of all sites'
parameters leaves the cache that one site's fits into.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, personal_parameters, shared_parameters
from client_agent.learning.losses import inverse_frequency, task_loss
from client_agent.learning.plugin import Plugin
from client_agent.learning.settings import ModelSources
from client_agent.learning.trainer import epoch_rows, private_randomness, rate_factor
from protocol.errors import ConfigurationError
from protocol.messages.control import TaskSpec, TrainingSpec
from protocol.messages.model import CLASSES

WEIGHTS_VARIABLE: Final = "MOIETY_WEIGHTS"


def own_sources() -> ModelSources:
    """Frozen layers come from the folder that MOIETY_WEIGHTS names."""
    folder = os.environ.get(WEIGHTS_VARIABLE)
    return ModelSources(architectures=None, weights=None if folder is None else Path(folder))


@dataclass(frozen=True)
class Computing:
    """``batched``: all sites' local steps as one call, where training allows it (:mod:`harness.engine.training`)."""

    device: torch.device
    batched: bool

    @classmethod
    def on(cls, device: torch.device) -> Computing:
        """Batched on a GPU alone: on a CPU that saves no time."""
        return cls(device, batched=device.type == "cuda")

    def __str__(self) -> str:
        """Name the way of computing for a result line: runs computed in different ways differ in their last bits."""
        return f"{self.device.type}, batched" if self.batched else self.device.type


ON_CPU: Final = Computing(torch.device("cpu"), batched=False)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes with one thread meanwhile: small models gain nothing by more, and sums have one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, eq=False)
class TrainedSites:
    """One row per site: updates before clipping, float32[S, D], and personal layers after the round, float32[S, P]."""

    updates: NDArray[np.float32] = field(repr=False)
    personal: NDArray[np.float32] = field(repr=False)


def repeated(vector: Vector, sites: int) -> NDArray[np.float32]:
    """The same row for every site, without copies."""
    return np.broadcast_to(vector, (sites, len(vector)))


Stack = dict[str, torch.Tensor]
"""Parameters by name, each with one row per site."""


def batchable(task: TaskSpec, plugin: Plugin | None) -> bool:
    """Return whether all sites' steps can be one call; else they are computed one by one."""
    return plugin is None and task_loss(task).each is not None


@dataclass(frozen=True, eq=False)
class _Step:
    """The t-th mini-batch of every site.

    ``rows`` int64[S, B] into the site's examples; ``share`` float32[S, B], each example's part of the loss, 0 for
    padding; ``active`` float32[S], 0 for a site that stands still.
    """

    rows: torch.Tensor
    share: torch.Tensor
    active: torch.Tensor


@dataclass(frozen=True, eq=False)
class _Data:
    """All sites' examples, padded to the longest: X float32[S, n, ...], y [S, n, ...], class weights float32[S, n]."""

    X: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    weights: NDArray[np.float32] = field(repr=False)
    sizes: tuple[int, ...]


class Batched:
    """All sites' local SGD as one call, for a built-in loss that is a mean over examples (:func:`batchable`).

    Raises: ConfigurationError for another update or loss
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sequence[Examples],
        seeds: Sequence[int],
        training: TrainingSpec,
        device: torch.device,
        task: TaskSpec = CLASSES,
    ) -> None:
        if training.update != "local_sgd":
            raise ConfigurationError(f"batched training takes local SGD, found update={training.update!r}")
        each = task_loss(task).each
        if each is None:
            raise ConfigurationError(f"batched training takes a mean over examples, which {task.chosen_loss} is not")
        self._each = each
        self._model = model.to(device)
        self._seeds, self._training, self._device = tuple(seeds), training, device
        self._data = _stacked_examples(sites, training, device)
        self._shared = [(name, tuple(p.shape)) for name, p in shared_parameters(model)]
        self._personal = [(name, tuple(p.shape)) for name, p in personal_parameters(model)]
        self._gradient = vmap(grad(self._loss), randomness="different")

    def train(self, models: NDArray[np.float32], personal: NDArray[np.float32], round: int) -> TrainedSites:
        stack = self._stack(models, self._shared) | self._stack(personal, self._personal)
        totals = {name: torch.zeros_like(stack[name]) for name, _ in self._shared}
        velocity = {name: torch.zeros_like(part) for name, part in stack.items()}
        factor = rate_factor(self._training, round)
        self._model.train()
        with private_randomness(self._seeds[0], f"round {round}, all sites", self._device):
            for step in self._steps(round):
                self._move(stack, totals, velocity, step, factor)
        return TrainedSites(self._rows(totals, self._shared), self._rows(stack, self._personal))

    def _move(self, stack: Stack, totals: Stack, velocity: Stack, step: _Step, factor: float) -> None:
        sites = torch.arange(len(step.rows), device=self._device)[:, None]
        gradient = self._gradient(stack, self._data.X[sites, step.rows], self._data.y[sites, step.rows], step.share)
        for name, part in gradient.items():
            active = step.active.reshape(-1, *[1] * (part.dim() - 1))
            slope = part + self._training.l2 * stack[name] if name in totals else part
            velocity[name].mul_(self._training.momentum).add_(slope).mul_(active)
            stack[name].sub_(velocity[name], alpha=self._training.local_learning_rate * factor)
            if name in totals:
                totals[name].add_(velocity[name], alpha=factor)

    def _loss(self, parameters: Stack, X: torch.Tensor, y: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        outputs = functional_call(self._model, parameters, (X,))
        return torch.sum(self._each(outputs, y) * share)

    def _steps(self, round: int) -> list[_Step]:
        batches = [
            epoch_rows(size, self._training, round, seed)
            for size, seed in zip(self._data.sizes, self._seeds, strict=True)
        ]
        return [self._step(batches, place) for place in range(max(len(site) for site in batches))]

    def _step(self, batches: Sequence[Sequence[NDArray[np.int64]]], place: int) -> _Step:
        sites, width = len(batches), self._training.batch_size
        rows, share = np.zeros((sites, width), np.int64), np.zeros((sites, width), np.float32)
        active = np.zeros(sites, np.float32)
        for site, own in enumerate(batches):
            if place < len(own):
                count = len(own[place])
                weights = self._data.weights[site, own[place]]
                rows[site, :count], share[site, :count], active[site] = own[place], weights / weights.sum(), 1
        return _Step(*(torch.from_numpy(array).to(self._device) for array in (rows, share, active)))

    def _stack(self, vectors: NDArray[np.float32], shapes: Sequence[tuple[str, tuple[int, ...]]]) -> Stack:
        ends = np.cumsum([prod(shape) for _, shape in shapes])[:-1]
        pieces = np.split(np.ascontiguousarray(vectors), ends, axis=1) if shapes else []
        return {
            name: torch.from_numpy(piece.reshape(len(vectors), *shape).copy()).to(self._device)
            for (name, shape), piece in zip(shapes, pieces, strict=True)
        }

    def _rows(self, stack: Stack, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> NDArray[np.float32]:
        sites = len(self._seeds)
        parts = [stack[name].reshape(sites, -1).cpu().numpy() for name, _ in shapes]
        return np.concatenate(parts, axis=1) if parts else np.zeros((sites, 0), np.float32)


def _stacked_examples(sites: Sequence[Examples], training: TrainingSpec, device: torch.device) -> _Data:
    sizes = tuple(len(site) for site in sites)
    X = np.zeros((len(sites), max(sizes), *sites[0].X.shape[1:]), np.float32)
    y = np.zeros((len(sites), max(sizes), *sites[0].y.shape[1:]), sites[0].y.dtype)
    weights = np.ones(y.shape[:2], np.float32)
    for number, site in enumerate(sites):
        X[number, : len(site)], y[number, : len(site)] = site.X, site.y
        if training.class_weights == "inverse_frequency":
            weights[number, : len(site)] = inverse_frequency(site.y, 0)[site.y]
    return _Data(torch.from_numpy(X).to(device), torch.from_numpy(y).to(device), weights, sizes)
