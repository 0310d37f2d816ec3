"""The schemes that are compared, as what a round does to the models of all sites.

averaged      one shared model, uniform average of the sites' updates: FedAvg; iFedAvg where the model has personal
              layers
mixed         APFL: the shared model of FedAvg, mixed at every site with a model of its own
alone         every site trains by itself
centralised   one model trained on the pooled data: what would be possible if data could be moved
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, load_personal, load_vector, model_vector, personal_vector
from client_agent.learning.trainer import apply_aggregate
from client_agent.learning.training_seeds import site_seed
from harness.datasets.site_data import SiteData
from harness.engine.site_updates import ClippedUpdate
from harness.personal.apfl import MixedSite, MixedTraining
from harness.personal.averaging import Averaging, in_the_open
from harness.training.site_training import OneByOne, SiteTraining, repeated
from protocol.arithmetic.fixed_point import check_finite, clip
from protocol.wire.messages import TrainingSpec


class SchemeName(StrEnum):
    AVERAGED = "averaged"
    MIXED = "mixed"
    ALONE = "alone"
    CENTRALISED = "centralised"

    @property
    def protectable(self) -> bool:
        """Whether a protected run means anything: pooled data have left their sites."""
        return self is not SchemeName.CENTRALISED


@dataclass(frozen=True, eq=False)
class SchemeState:
    """All that moves from round to round.

    ``models`` float32[1 or S, D]: the shared model, or one per site. ``personal`` float32[S, P]: personal layers.
    ``own`` float32[S, D] and ``mixing`` float64[S]: APFL's, empty otherwise.
    """

    models: NDArray[np.float32] = field(repr=False)
    personal: NDArray[np.float32] = field(repr=False)
    own: NDArray[np.float32] = field(repr=False)
    mixing: NDArray[np.float64] = field(repr=False)


@dataclass(frozen=True)
class Mixing:
    """APFL's mixing weight at the start, and whether it adapts."""

    start: float = 0.5
    adaptive: bool = True


@dataclass(frozen=True)
class Comparison:
    """What stays the same over a run; ``initial`` and ``initial_personal`` are the model's first values.

    ``average`` makes one of all sites' updates wherever a scheme shares them.
    """

    model: nn.Module
    initial: Vector = field(repr=False)
    initial_personal: Vector = field(repr=False)
    sites: tuple[SiteData, ...]
    seed: int
    training: TrainingSpec
    clip_norm: float
    mixing: Mixing
    device: torch.device
    average: Averaging = in_the_open

    @staticmethod
    def of(
        model: nn.Module,
        sites: tuple[SiteData, ...],
        seed: int,
        training: TrainingSpec,
        clip_norm: float,
        mixing: Mixing,
        device: torch.device,
        average: Averaging = in_the_open,
    ) -> Comparison:
        """``model`` has its initial values now; later it is a tool that holds any site's."""
        first, personal = model_vector(model), personal_vector(model)
        return Comparison(model, first, personal, sites, seed, training, clip_norm, mixing, device, average)

    def seeds(self) -> list[int]:
        return [site_seed(self.seed, site.name) for site in self.sites]

    def one_by_one(self) -> SiteTraining:
        return OneByOne(self.model, [site.train for site in self.sites], self.seeds(), self.training, self.device)


class Scheme(Protocol):
    """A scheme's start and its rounds, counted from 1; ``round`` also gives the share of updates that were clipped."""

    def start(self) -> SchemeState: ...

    def round(self, state: SchemeState, number: int) -> tuple[SchemeState, float]: ...


def scheme_of(name: SchemeName, comparison: Comparison, sites: SiteTraining) -> Scheme:
    """The scheme, with ``sites`` to train them all."""
    if name is SchemeName.AVERAGED:
        return Averaged(comparison, sites)
    if name is SchemeName.MIXED:
        return Mixed(comparison)
    if name is SchemeName.ALONE:
        return Alone(comparison, sites)
    return Centralised(comparison, pooled_training(comparison))


def first_state(comparison: Comparison, rows: int) -> SchemeState:
    """The model's initial values in every row."""
    vector, personal = comparison.initial, comparison.initial_personal
    nothing = np.zeros((0, len(vector)), np.float32)
    layers = repeated(personal, len(comparison.sites))
    return SchemeState(repeated(vector, rows).copy(), layers.copy(), nothing, np.zeros(0))


def load_site(comparison: Comparison, state: SchemeState, site: int) -> nn.Module:
    """The model as the site uses it."""
    shared = state.models[site if len(state.models) > 1 else 0]
    if len(state.own):
        shared = MixedSite(state.own[site], float(state.mixing[site])).mixed(shared)
    load_vector(comparison.model, shared)
    load_personal(comparison.model, state.personal[site])
    return comparison.model


@dataclass(frozen=True)
class Averaged:
    """FedAvg, uniform; personal layers, where the model has them, stay in their rows."""

    comparison: Comparison
    sites: SiteTraining

    def start(self) -> SchemeState:
        return first_state(self.comparison, 1)

    def round(self, state: SchemeState, number: int) -> tuple[SchemeState, float]:
        trained = self.sites.train(repeated(state.models[0], len(state.personal)), state.personal, number)
        vector, clipped = averaged(self.comparison, state.models[0], trained.updates, number)
        return replace(state, models=vector[None], personal=trained.personal), clipped


@dataclass(frozen=True)
class Mixed:
    """APFL. Every site's own model begins at the shared one."""

    comparison: Comparison

    def start(self) -> SchemeState:
        sites = len(self.comparison.sites)
        state = first_state(self.comparison, 1)
        return replace(
            state, own=repeated(state.models[0], sites).copy(), mixing=np.full(sites, self.comparison.mixing.start)
        )

    def round(self, state: SchemeState, number: int) -> tuple[SchemeState, float]:
        comparison = self.comparison
        training = MixedTraining(comparison.model, comparison.training, comparison.mixing.adaptive, comparison.device)
        updates, kept = [], []
        for row, (site, seed) in enumerate(zip(comparison.sites, comparison.seeds(), strict=True)):
            before = MixedSite(state.own[row], float(state.mixing[row]))
            update, own = training.train(site.train, state.models[0], before, round=number, seed=seed)
            updates.append(update)
            kept.append(own)
        vector, clipped = averaged(comparison, state.models[0], np.stack(updates), number)
        own_models = np.stack([site.own for site in kept])
        mixing = np.array([site.mixing for site in kept])
        return replace(state, models=vector[None], own=own_models, mixing=mixing), clipped


@dataclass(frozen=True)
class Alone:
    """Every site applies its own update."""

    comparison: Comparison
    sites: SiteTraining

    def start(self) -> SchemeState:
        return first_state(self.comparison, len(self.comparison.sites))

    def round(self, state: SchemeState, number: int) -> tuple[SchemeState, float]:
        trained = self.sites.train(state.models, state.personal, number)
        rate = self.comparison.training.server_learning_rate
        models = [apply_aggregate(row, update, rate) for row, update in zip(state.models, trained.updates, strict=True)]
        return replace(state, models=np.stack(models), personal=trained.personal), 0.0


@dataclass(frozen=True)
class Centralised:
    """One model on all sites' training examples, which ``pooled`` trains as one site."""

    comparison: Comparison
    pooled: SiteTraining

    def start(self) -> SchemeState:
        return first_state(self.comparison, 1)

    def round(self, state: SchemeState, number: int) -> tuple[SchemeState, float]:
        trained = self.pooled.train(state.models, state.personal[:1], number)
        rate = self.comparison.training.server_learning_rate
        vector = apply_aggregate(state.models[0], trained.updates[0], rate)
        layers = repeated(trained.personal[0], len(state.personal)).copy()
        return replace(state, models=vector[None], personal=layers), 0.0


def pooled_training(comparison: Comparison) -> SiteTraining:
    """All sites' training examples as those of one site."""
    pooled = Examples(
        np.concatenate([site.train.X for site in comparison.sites]),
        np.concatenate([site.train.y for site in comparison.sites]),
    )
    seeds = [site_seed(comparison.seed, "pooled")]
    return OneByOne(comparison.model, [pooled], seeds, comparison.training, comparison.device)


def averaged(comparison: Comparison, vector: Vector, updates: NDArray[np.float32], number: int) -> tuple[Vector, float]:
    """Clip, average with equal weights and apply, as a study's run does; and the share that was clipped.

    Raises: UnusableUpdate when an update is not finite; what the comparison's average raises
    """
    given = []
    for update in updates:
        check_finite(update, (("model", len(vector)),))
        given.append(ClippedUpdate(*clip(update, comparison.clip_norm)))
    average = comparison.average(number, given)
    applied = apply_aggregate(vector, average, comparison.training.server_learning_rate)
    return applied, sum(update.was_clipped for update in given) / len(given)
