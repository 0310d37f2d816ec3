"""Compute one site's update, and measure and add up a round in the open.

A plain run and a secure one add the same whole numbers, drawn as a server draws them; servers draw from their system.

A plain run measures and sums real vectors; a secure one (:mod:`harness.engine.protected_sum`) does the same under the
protocol. Both leave the judgement, who stays in the sum, to the requester's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.flat_vector import ModelParts, Vector, layer_sizes
from client_agent.learning.plugin import Plugin, assessor, site_loss
from client_agent.learning.sampling import site_seed
from client_agent.learning.trainer import loss_gradient, private_round, train_round
from harness.datasets.site_data import SiteData
from protocol.arithmetic.fixed_point import check_finite, clip
from protocol.arithmetic.ring import derive
from protocol.messages.control import Announcement, ListedWeight, RuleName, Study, WeightList
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs
from protocol.rounds.judgement import Judgement, judge_sum
from protocol.rules.fedavg import class_weight, sample_weight

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class ClippedUpdate:
    """A site's update after clipping, float64[D], and whether it had been longer.

    ``own_weight`` is the weight that the site gives itself, None where the weight list says it. ``personal`` are its
    personal layers after the round, float32[P], which it keeps.
    """

    values: NDArray[np.float64] = field(repr=False)
    was_clipped: bool
    own_weight: float | None = None
    personal: Vector = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)

    @property
    def norm(self) -> float:
        return float(np.sqrt(squared_norm(self.values)))

    def weight(self, listed: float) -> float:
        """The site's own weight, or the listed one."""
        return listed if self.own_weight is None else self.own_weight

    def shared(self, clip_norm: float) -> NDArray[np.float64]:
        """Return the site's shared vector before the list's weight: g, or (w g, w C) where it weighs itself."""
        if self.own_weight is None:
            return self.values
        return np.append(self.own_weight * self.values, self.own_weight * clip_norm)


@dataclass(frozen=True, eq=False)
class Training:
    """With what a site trains; ``model`` is the run's one module, into which each site loads its own values."""

    study: Study
    model: nn.Module
    device: torch.device = CPU
    plugin: Plugin | None = None


def squared_norm(values: NDArray[np.float64]) -> float:
    """Sum of squares in float64."""
    return float(np.sum(np.square(values)))


def clipped_update(
    training: Training,
    site: SiteData,
    vector: Vector,
    round_number: int,
    own_weight: float | None = None,
    personal: Vector | None = None,
) -> ClippedUpdate:
    """The site's update of a round from the model ``vector``, float32[D], and its ``personal`` layers, float32[P].

    In a study with ``privacy`` the noise is drawn from the run's seed, so that runs can be repeated; a site's agent
    draws it from its system.

    Raises: UnusableUpdate
    """
    study, model = training.study, training.model
    load_site(model, vector, personal)
    seed = site_seed(study.seed or 0, site.name)
    loss = site_loss(study, training.plugin, site.train.y)
    if study.record_noise is not None:
        update = private_round(
            model,
            site.train,
            study.training,
            study.record_noise,
            round=round_number,
            seed=derive(seed.to_bytes(32, "big"), f"noise of round {round_number}"),
            device=training.device,
            loss=loss,
        )
        return clipped(study, update, own_weight, np.zeros(0, np.float32))
    trained = train_round(
        model, site.train, study.training, round=round_number, seed=seed, device=training.device, loss=loss
    )
    return clipped(study, trained.update, own_weight, trained.personal)


def clipped(study: Study, update: Vector, own_weight: float | None, personal: Vector) -> ClippedUpdate:
    """A trained update, float32[D], as its site goes on with it. Raises: UnusableUpdate"""
    check_finite(update, layer_sizes(study.model.layers))
    values, was_clipped = clip(update, study.parameters.clip_norm)
    return ClippedUpdate(values, was_clipped, own_weight, personal)


def load_site(model: nn.Module, vector: Vector, personal: Vector | None) -> None:
    """The shared layers, and the site's own ones; None leaves those as they are."""
    ModelParts.of(model).load(vector, personal)


def clipped_probe(
    training: Training, requester: SiteData, vector: Vector, personal: Vector | None = None
) -> NDArray[np.float64]:
    """The gradient of the requester's validation loss at the model ``vector``, clipped like an update, float64[D].

    Raises: ConfigurationError without validation examples; UnusableUpdate
    """
    study, model = training.study, training.model
    load_site(model, vector, personal)
    raw = loss_gradient(model, requester.validation, CPU, assessor(study, training.plugin, CPU).loss)
    check_finite(raw, layer_sizes(study.model.layers))
    return clip(raw, study.parameters.clip_norm)[0]


def class_counts(site: SiteData, classes: int) -> tuple[int, ...]:
    return tuple(int(count) for count in np.bincount(site.train.y, minlength=classes))


def own_weight(study: Study, site: SiteData, totals: tuple[int, ...], largest_count: int) -> float | None:
    """The weight that a site gives itself; None for rules whose weights the requester hands out.

    ``totals`` are the summed class counts, ``largest_count`` the number of samples of weight 1.

    Raises: ConfigurationError when no site has a class
    """
    grid = study.parameters.weight_grid
    if study.rule.name is RuleName.FEDAVG_BY_SAMPLES:
        return sample_weight(len(site.train), largest_count, grid)
    if study.rule.name is RuleName.WFEDAVG:
        return class_weight(class_counts(site, study.model.classes), totals, grid)
    return None


Judge: TypeAlias = Callable[[Sequence[OpenedSite]], Judgement]
"""Opened values of the agreed sites, the requester among them -> who stays in the sum."""


def everybody_in_range(announcement: Announcement, requester: str) -> Judge:
    """The judgement of a round in which nothing is opened: who passed the range check stays."""
    return lambda sites: judge_sum(sites, requester, announcement.round)


@dataclass(frozen=True, eq=False)
class RoundInputs:
    """The sites' part of a round: the requester's update, every present contributor's, the requester's probe.

    ``clip_norm`` is the study's C.
    """

    announcement: Announcement
    weight_list: WeightList
    requester: str
    own: ClippedUpdate
    updates: Mapping[str, ClippedUpdate]
    probe: NDArray[np.float64] | None = field(repr=False)
    judge: Judge
    clip_norm: float

    @property
    def contributed(self) -> tuple[tuple[ListedWeight, ClippedUpdate], ...]:
        """The present contributors in the list's order, each with its listed weight."""
        return tuple((w, self.updates[w.site]) for w in self.weight_list.weights if w.site in self.updates)


@dataclass(frozen=True, eq=False)
class Summed:
    """The opening of a round of updates: the average to all, the judgement to the requester.

    ``average`` is None for a skipped round, ``judgement`` where it was skipped before anything was opened.
    ``sum_of_weights`` counts the requester's.
    """

    average: Vector | None = field(repr=False)
    judgement: Judgement | None = None
    sum_of_weights: float = 0.0


@dataclass(frozen=True)
class Counted:
    """The opening of a round of class counts: the sum by class, None for a skipped round, and the failed checks."""

    totals: tuple[int, ...] | None
    took_part: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class Summing(Protocol):
    """Adds up a round, in the open or under the protocol."""

    def updates(self, inputs: RoundInputs) -> Summed: ...

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        """The sum of every present site's class counts, the requester's first."""
        ...


class PlainSum:
    """Sum and measurements in the open; nobody fails the range check."""

    def updates(self, inputs: RoundInputs) -> Summed:
        judgement = inputs.judge(measured_plainly(inputs))
        announced = inputs.announcement
        if not announced.purpose.plan.summed or not judgement.releases(announced.least_contributors):
            return Summed(None, judgement)
        released = judgement.measured.took_part
        kept = [(weight, update) for weight, update in inputs.contributed if weight.site in released]
        if inputs.own.own_weight is not None:
            return self_weighted(inputs.own, [update for _, update in kept], judgement)
        grid, own = inputs.weight_list.grid, inputs.weight_list.own_numerator
        sum_of_weights = (own + sum(weight.numerator for weight, _ in kept)) / grid
        return Summed(average(inputs.own.values, kept, grid, own), judgement, sum_of_weights)

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        totals = tuple(sum(column) for column in zip(*counts.values(), strict=True))
        return Counted(totals, tuple(counts)[1:])


def measured_plainly(inputs: RoundInputs) -> tuple[OpenedSite, ...]:
    """Open what the round opens about every site, without sketch or fixed point."""
    opens, own = inputs.announcement.opens, inputs.own.values
    opened = [OpenedSite(inputs.requester, True)]
    before = {inputs.requester: own}
    for weight, update in inputs.contributed:
        values, found = update.values, OpenedSite(weight.site, True)
        sent = values * (weight.numerator / inputs.weight_list.grid)
        if opens is Needs.DISTANCES:
            found = replace(found, distance=_length(values - own))
        elif opens.of_norms:
            found = replace(found, distance=_length(update.shared(inputs.clip_norm)))
        elif opens is Needs.PAIRS:
            found = replace(found, pairs=tuple((other, _length(sent - theirs)) for other, theirs in before.items()))
        elif opens is Needs.INNER_PRODUCTS and inputs.probe is not None:
            found = replace(found, inner_product=float(np.sum(values * inputs.probe)))
        opened.append(found)
        before[weight.site] = sent
    return tuple(opened)


def average(
    own: NDArray[np.float64],
    updates: Sequence[tuple[ListedWeight, ClippedUpdate]],
    grid: int,
    own_numerator: int | None = None,
) -> Vector:
    """(w_0 g_0 + sum w_i g_i) / (w_0 + sum w_i) as float32: what the secure sum opens, but for fixed point's rounding.

    w_0 is 1 unless ``own_numerator`` is given.
    """
    whole = grid if own_numerator is None else own_numerator
    sum_of_weights = (whole + sum(weight.numerator for weight, _ in updates)) / grid
    total = own * (whole / grid)
    for weight, update in updates:
        total += update.values * (weight.numerator / grid)
    averaged: Vector = (total / sum_of_weights).astype(np.float32)
    return averaged


def self_weighted(own: ClippedUpdate, others: Sequence[ClippedUpdate], judgement: Judgement) -> Summed:
    """sum w_i g_i / sum w_i over all sites, each with the weight it gives itself."""
    shared = own.shared(1.0)
    for update in others:
        shared += update.shared(1.0)
    averaged: Vector = (shared[:-1] / shared[-1]).astype(np.float32)
    return Summed(averaged, judgement, float(shared[-1]))


def _length(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(squared_norm(values)))
