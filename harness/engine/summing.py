"""How a round's updates are measured and added up, whoever does it; here in the open (docs/protocol.md 2, 8, 9).

A plain run measures and sums real vectors; a secure one (:mod:`harness.engine.secure`) does the same under the
protocol. Both leave the judgement, who stays in the sum, to the requester's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.flat_vector import Vector
from client_agent.requester.measuring.judging import Judgement, judge_sum
from harness.engine.site_updates import ClippedUpdate, squared_norm
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs
from protocol.wire.messages import Announcement, ListedWeight, WeightList

Judge: TypeAlias = Callable[[Sequence[OpenedSite]], Judgement]
"""From what was opened about the agreed sites, the requester among them, to who stays in the sum."""


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
    """What a round of updates opens: the average to all, the judgement to the requester.

    ``average`` is None for a skipped round, ``judgement`` where it was skipped before anything was opened.
    ``sum_of_weights`` counts the requester's.
    """

    average: Vector | None = field(repr=False)
    judgement: Judgement | None = None
    sum_of_weights: float = 0.0


@dataclass(frozen=True)
class Counted:
    """What a round of class counts opens: the sum by class, None for a skipped round, and the failed checks."""

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
        total = inputs.own.values * (own / grid)
        return Summed(_divided(total, kept, grid, sum_of_weights), judgement, sum_of_weights)

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        totals = tuple(sum(column) for column in zip(*counts.values(), strict=True))
        return Counted(totals, tuple(counts)[1:])


def measured_plainly(inputs: RoundInputs) -> tuple[OpenedSite, ...]:
    """What the round opens about every site, without sketch or fixed point."""
    opens, own = inputs.announcement.opens, inputs.own.values
    opened = [OpenedSite(inputs.requester, True)]
    before = {inputs.requester: own}
    for weight, update in inputs.contributed:
        site, values = weight.site, update.values
        sent = values * (weight.numerator / inputs.weight_list.grid)
        if opens is Needs.DISTANCES:
            opened.append(OpenedSite(site, True, distance=_length(values - own)))
        elif opens.of_norms:
            opened.append(OpenedSite(site, True, distance=_length(update.shared(inputs.clip_norm))))
        elif opens is Needs.PAIRS:
            pairs = tuple((other, _length(sent - theirs)) for other, theirs in before.items())
            opened.append(OpenedSite(site, True, pairs=pairs))
        elif opens is Needs.INNER_PRODUCTS and inputs.probe is not None:
            opened.append(OpenedSite(site, True, inner_product=float(np.sum(values * inputs.probe))))
        else:
            opened.append(OpenedSite(site, True))
        before[site] = sent
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
    return _divided(own * (whole / grid), updates, grid, sum_of_weights)


def _divided(
    total: NDArray[np.float64], updates: Sequence[tuple[ListedWeight, ClippedUpdate]], grid: int, sum_of_weights: float
) -> Vector:
    """What ``total`` and the weighted updates are on average; ``total`` becomes their sum."""
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
