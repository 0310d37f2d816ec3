"""All sites' local training of a round: what a simulation asks for, whether it is computed site by site or batched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, load_personal, load_vector
from client_agent.learning.trainer import train_round
from protocol.wire.messages import TrainingSpec


@dataclass(frozen=True, eq=False)
class TrainedSites:
    """One row per site: updates before clipping, float32[S, D], and personal layers after the round, float32[S, P]."""

    updates: NDArray[np.float32] = field(repr=False)
    personal: NDArray[np.float32] = field(repr=False)


class SiteTraining(Protocol):
    """Trains every site for one round from its own row of ``models``, float32[S, D], and ``personal``, [S, P]."""

    def train(self, models: NDArray[np.float32], personal: NDArray[np.float32], round: int) -> TrainedSites: ...


@dataclass(frozen=True)
class OneByOne:
    """Every site after the other, as its agent would: the reference."""

    model: nn.Module
    sites: Sequence[Examples]
    seeds: Sequence[int]
    training: TrainingSpec
    device: torch.device

    def train(self, models: NDArray[np.float32], personal: NDArray[np.float32], round: int) -> TrainedSites:
        updates, own = [], []
        for row, (data, seed) in enumerate(zip(self.sites, self.seeds, strict=True)):
            load_vector(self.model, models[row])
            load_personal(self.model, personal[row])
            done = train_round(self.model, data, self.training, round=round, seed=seed, device=self.device)
            updates.append(done.update)
            own.append(done.personal)
        return TrainedSites(np.stack(updates), np.stack(own))


def repeated(vector: Vector, sites: int) -> NDArray[np.float32]:
    """The same row for every site, without copies."""
    return np.broadcast_to(vector, (sites, len(vector)))
