"""One site's part of a round of a baseline: its gradients, and what it gives and keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.architectures.statistics import has_statistics
from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector
from client_agent.learning.personal import personal_parameters
from client_agent.learning.trainer import epoch_rows, gradients, private_randomness, rate_factor, take
from client_agent.tasks.losses import Loss
from protocol.errors import ConfigurationError
from protocol.wire.messages import TrainingSpec

Rows = NDArray[np.int64]
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class SiteRound:
    """``update``: the sum of the steps on the shared model, float32[D], as FedAvg's update. ``memory``: what the site
    keeps, float32[D] or empty. ``personal``: the model it uses, float32[D], where the algorithm has one.
    """

    update: Vector = field(repr=False)
    memory: Vector = field(repr=False)
    personal: Vector | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class LocalProblem:
    """A site's loss and its mini-batches of a round; ``model`` is a tool that any values are loaded into."""

    model: nn.Module
    data: Examples
    training: TrainingSpec
    loss: Loss
    round: int
    seed: int

    @property
    def factor(self) -> float:
        """What a decaying learning rate is multiplied by in this round."""
        return rate_factor(self.training, self.round)

    @property
    def rate(self) -> float:
        """The local learning rate of this round."""
        return self.training.local_learning_rate * self.factor

    def batches(self) -> Iterator[Rows]:
        """The rows of every mini-batch, those of FedAvg; what a model draws meanwhile comes from the seed."""
        self.model.train()
        with private_randomness(self.seed, f"round {self.round}", CPU):
            yield from epoch_rows(len(self.data), self.training, self.round, self.seed)

    def slope(self, values: torch.Tensor, rows: Rows) -> torch.Tensor:
        """The gradient of the loss over a mini-batch at these parameters, float32[D]."""
        parameters = list(self.model.parameters())
        nn.utils.vector_to_parameters(values, parameters)
        parts = gradients(self.model, parameters, take(self.data, rows, CPU), self.loss)
        return torch.cat([part.reshape(-1) for part in parts]).detach()


class Baseline(Protocol):
    """An algorithm. ``personal``: sites use models of their own. ``keeps_common``: the sum of the sites' memories,
    over the number of all sites, is known to everybody.
    """

    personal: bool
    keeps_common: bool

    def first_memory(self, first: Vector) -> Vector:
        """What a site keeps before round 1, from the first model."""
        ...

    def train(self, problem: LocalProblem, shared: Vector, memory: Vector, common: Vector) -> SiteRound:
        """One site's round from the shared model, float32[D]."""
        ...


def require_plain_steps(model: nn.Module, training: TrainingSpec, name: str) -> None:
    """ConfigurationError for a model or settings that these papers do not define."""
    personal = [layer for layer, _ in personal_parameters(model)]
    if personal:
        raise ConfigurationError(f"{name} takes no model with personal layers, found {', '.join(personal)}")
    if has_statistics(model):
        raise ConfigurationError(f"{name} takes no model with batch norm: use GroupNorm, or rule 'fedavg'")
    if training.update != "local_sgd" or training.momentum or training.l2:
        raise ConfigurationError(
            f"{name} takes local SGD without momentum and l2, found update={training.update!r}, "
            f"momentum={training.momentum}, l2={training.l2}"
        )


def tensor(vector: Vector) -> torch.Tensor:
    """A copy that steps may change."""
    return torch.from_numpy(vector.copy())


def nothing() -> Vector:
    """The memory of an algorithm that keeps none."""
    return np.zeros(0, np.float32)
