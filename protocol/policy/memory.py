"""A site's memory of past rounds, so that its policy holds over a whole study (docs/protocol.md 9).

Updates are kept to compare later ones with: all of a short one, a sketch of a long one. The sketch is four blocks of
buckets; each coordinate falls in each block into one pseudo-random bucket with a pseudo-random sign (sparse
Johnson-Lindenstrauss, Kane & Nelson 2014), from a seed that the site draws once and tells nobody. Isolation is the
residual of a least-squares problem in the span of at most 200 updates. Solved on sketches it is at most the sketched
length of the one residual that is truly best, and that vector's length, like the newest update's, is kept with a
relative standard deviation of sqrt(1/2k), 1.1 % at k = 4096: so the figure, their quotient, comes out more than 5 % too
high with a probability of about 1e-3. It comes out too low, where 200 rows are fitted, by a factor of about sqrt(1 -
200/k): 2.5 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeAlias

import numpy as np
from pydantic import Field

from protocol.arithmetic import kernels
from protocol.arithmetic.fixed_point import Real, Update
from protocol.arithmetic.ring import Usage, expand_into
from protocol.messages.control import Announcement, ListedWeight, Purpose, WeightList
from protocol.parameters import Record

_ONCE: Final[Mapping[Purpose, str]] = {
    Purpose.COUNTS: "counted",
    Purpose.RANKING: "ranked",
    Purpose.SUMMARY: "summarised",
    Purpose.MEASURE: "apart",
}
"""The memory of the round that may have done what is done once, a study or a model."""


class ReleasedSum(Record):
    """The sites and weights of a sum that was released against a model."""

    model_version: int
    weights: tuple[ListedWeight, ...]


class LeftOut(Record):
    """The rounds in which a site was in the agreed set but not in the sum, without a failed check."""

    site: str
    rounds: tuple[int, ...]


class SiteMemory(Record):
    """The policy's memory of past rounds; serialisable, and to be stored before a contribution leaves.

    ``last_listed`` holds the last weight of every site on a list that this site contributed to, ``summed_list`` the
    list of the last round of updates that was released, ``summed_requester`` the requester's numerator on it.
    ``model_version`` is the newest model seen; ``measured_rounds`` and ``released`` concern that model.
    ``last_accepted`` is the last round whose list this site accepted, ``unsettled`` the same round while this site
    has seen neither its release nor a skip that both servers signed. ``counted`` is the round that summed class counts,
    whether or not this site has seen how it ended; ``ranked`` likewise the round that ranked the sites, ``summarised``
    the one that summed their summaries, and ``apart`` the one that measured this model's updates without summing them.
    """

    last_listed: tuple[ListedWeight, ...] = ()
    summed_list: tuple[ListedWeight, ...] = ()
    summed_requester: int | None = None
    model_version: Annotated[int, Field(ge=0)] = 0
    measured_rounds: tuple[int, ...] = ()
    released: ReleasedSum | None = None
    last_accepted: Annotated[int, Field(ge=0)] = 0
    unsettled: int | None = None
    counted: int | None = None
    ranked: int | None = None
    apart: int | None = None
    summarised: int | None = None
    left_out: tuple[LeftOut, ...] = ()

    def last_numerator(self, site: str) -> int | None:
        """The site's last listed weight, None when it was never listed."""
        return next((w.numerator for w in self.last_listed if w.site == site), None)

    def done(self, purpose: Purpose) -> int | None:
        """The round that may have done what a study does once; None before, and for updates."""
        field = _ONCE.get(purpose)
        return None if field is None else getattr(self, field)


def remember_contribution(memory: SiteMemory, announcement: Announcement, weight_list: WeightList) -> SiteMemory:
    """Memory once the list was accepted; store it before the first share leaves. Repeating it changes nothing.

    Rankings and measurements release nothing, so they are remembered as such and no more.
    """
    memory = _on_model(memory, announcement.model_version)
    if not announcement.purpose.plan.summed:
        return _remember_once(memory, announcement).model_copy(update={"last_accepted": announcement.round})
    listed = {weight.site for weight in weight_list.weights}
    kept = tuple(weight for weight in memory.last_listed if weight.site not in listed)
    rounds = memory.measured_rounds
    if announcement.measured and announcement.round not in rounds:
        rounds = (*rounds, announcement.round)
    return _remember_once(memory, announcement).model_copy(
        update={
            "last_listed": kept + weight_list.weights,
            "measured_rounds": rounds,
            "last_accepted": announcement.round,
            "unsettled": announcement.round,
        }
    )


def remember_release(
    memory: SiteMemory, announcement: Announcement, weight_list: WeightList, contributors: tuple[str, ...]
) -> SiteMemory:
    """Memory once a sum over ``contributors`` (the release set without the requester) was released.

    A release against an older model than the one remembered changes nothing; one of class counts or of summaries is
    remembered as such whatever the model, and is no sum of updates against it.
    """
    memory = _remember_once(memory, announcement)
    if announcement.model_version < memory.model_version:
        return memory
    memory = _settled(_on_model(memory, announcement.model_version), announcement.round)
    if not announcement.purpose.plan.steps_model:
        return memory
    weights = tuple(weight for weight in weight_list.weights if weight.site in contributors)
    return memory.model_copy(
        update={
            "released": ReleasedSum(model_version=announcement.model_version, weights=weights),
            "summed_list": weight_list.weights,
            "summed_requester": weight_list.requester,
        }
    )


def remember_skip(memory: SiteMemory, round_number: int) -> SiteMemory:
    """Memory once both servers have signed that the round ended without a release."""
    undone = {field: None for field in _ONCE.values() if getattr(memory, field) == round_number}
    memory = memory.model_copy(update=undone)
    return _settled(memory, round_number)


def remember_left_out(
    memory: SiteMemory,
    round_number: int,
    agreed: tuple[str, ...],
    released: tuple[str, ...],
    failed_check: tuple[str, ...],
    *,
    own: str,
) -> SiteMemory:
    """Memory with the agreed sites noted that a release left out without a failed check; repeating changes nothing.

    ``failed_check`` is the requester's word. ``own`` knows that its own update is in range and ignores a claim
    about itself; of the other sites it cannot know better.
    """
    records = {record.site: record.rounds for record in memory.left_out}
    for site in agreed:
        rounds = records.get(site, ())
        failed = site in failed_check and site != own
        if site not in released and not failed and round_number not in rounds:
            records[site] = (*rounds, round_number)
    return memory.model_copy(
        update={"left_out": tuple(LeftOut(site=site, rounds=rounds) for site, rounds in sorted(records.items()))}
    )


def _remember_once(memory: SiteMemory, announcement: Announcement) -> SiteMemory:
    field = _ONCE.get(announcement.purpose)
    return memory if field is None else memory.model_copy(update={field: announcement.round})


def _on_model(memory: SiteMemory, version: int) -> SiteMemory:
    """Counts start afresh with a newer model."""
    if version <= memory.model_version:
        return memory
    return memory.model_copy(
        update={"model_version": version, "measured_rounds": (), "released": None, "unsettled": None, "apart": None}
    )


def _settled(memory: SiteMemory, round_number: int) -> SiteMemory:
    return memory.model_copy(update={"unsettled": None}) if memory.unsettled == round_number else memory


Layers: TypeAlias = Sequence[tuple[str, int]]
KEPT_LENGTH: Final = 4096
_BLOCKS: Final = 4
_PIECE: Final = 2**16
_LAYER: Final = 2**40
"""More than the longest layer: each has places of its own."""


def kept_update(update: Update, seed: bytes, layers: Layers = ()) -> Real:
    """The update, or its sketch where it is longer than ``KEPT_LENGTH``; inner products are (nearly) the same.

    Shapes:   float[D] -> float64[min(D, KEPT_LENGTH)]; ``layers`` are names and sizes, none: one layer
    Requires: ``seed`` the same for all updates that are compared
    Raises:   MalformedMessage, when the seed is not 32 bytes
    """
    return update.astype(np.float64) if update.size <= KEPT_LENGTH else sketched(update, seed, layers)


def sketched(update: Update, seed: bytes, layers: Layers = ()) -> Real:
    """The sketch, also of a short update: the product of two is that of what their first, second, ... layers share.

    Why: a model with one class more than another has other lengths, and nearly the same updates.

    Shapes:   float[D] -> float64[KEPT_LENGTH]; ``layers`` as :func:`kept_update`
    Raises:   MalformedMessage, when the seed is not 32 bytes
    """
    kept: Real = np.zeros(KEPT_LENGTH)
    first = 0
    for number, (_, size) in enumerate(layers or (("", update.size),)):
        _sketch_into(kept, update[first : first + size], seed, number * _LAYER)
        first += size
    kept /= np.sqrt(_BLOCKS)
    return kept


def _sketch_into(kept: Real, layer: Update, seed: bytes, place: int) -> None:
    words = np.empty(min(_PIECE, layer.size), dtype=np.uint64)
    for start in range(0, layer.size, _PIECE):
        piece = layer[start : start + _PIECE]
        drawn = words[: piece.size]
        expand_into(seed, Usage.MEMORY, drawn, start=place + start)
        kernels.sketch_reals(kept, drawn, piece)


def rounding_noise(update: Update, weight: float, scale: float) -> float:
    """Squared length that stochastic rounding is expected to add to the weighted, encoded update.

    A value with the fraction phi is rounded up with probability phi, so its error has the variance phi (1 - phi). Of a
    sum's noise this is the site's own part alone: less than there is, so that isolation is not overrated.

    Shapes:   float[D] -> in the update's unit, squared; ``scale`` is 2^f
    """
    total = 0.0
    for start in range(0, update.size, _PIECE):
        fraction = update[start : start + _PIECE].astype(np.float64)
        fraction *= weight * scale
        fraction -= np.floor(fraction)
        total += float(np.sum(fraction * (1.0 - fraction)))
    return total / scale**2
