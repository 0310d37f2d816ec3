"""Sums that no site sees together: what a site holds against them from its own updates alone (docs/protocol.md 13).

A site sees every sum that it was in. A requester with several studies can share its questions out so that only the
sums of all of them, together, show an update: {1, 2, 3} in one, {4, 5, 6} in another, {2, 3, 4, 5, 6} in a third. For
that, somebody's update must enter two sums over different sites nearly unchanged, or nothing cancels, and that site
sees both. So the same update goes into sums over the same sites only, where a site cannot know what else was summed.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

import numpy as np

from protocol.arithmetic.fixed_point import Real
from protocol.policy.summed_rows import UNKNOWN_REQUESTER, SummedRow

_FEW: Final = 4
_PARALLEL: Final = 1e-9
"""What is left of an update that others explain, as a part of its length: rounding."""


def told_of_all(row: SummedRow, accounted: Set[int]) -> bool:
    """Return whether a site knows what every earlier round of ``row``'s study opened. Counting sums would not do.

    ``accounted`` are the study's rounds of which it knows all that they can have opened: a row of everything that the
    announcement which both servers signed admits, or both servers' word that no updates were summed. Rounds are
    numbered from 1 on without a gap and announced once, so that none can hide behind another one, and a sum that left
    the model as it was is asked for like any other.
    """
    return all(number in accounted for number in range(1, row.round))


def linked_error(
    past: Sequence[SummedRow], row: SummedRow, updates: Real, *, colluders: int, told: bool = False
) -> float:
    """Relative error of one update in ``row``'s sum, were everything known that other sites' sums can say.

    Of the n updates in the sum each but one is then known as well as updates in older sums tell it: up to the part that
    this site's own newest update has at right angles to a few of those. Those parts point anywhere, so together they
    are sqrt(n) times as long. A few: in a small model many random updates span everything, and say nothing.
    ``told``: :func:`told_of_all`; where that is not proven, sums of the same study are linked like others.

    Shapes:   updates float64[len(past) + 1, k]: this site's, or what stands in for them; the newest is the last
    Returns:  infinity where no older sum is linked with this one
    """
    asked = _Asked(row, blind_within=not told, any_requester=colluders > 0)
    linked = updates[:-1][[asked.linked_with(one) for one in past]]
    weights = np.array([one.weight for one in row.weights])
    if not len(linked) or not weights.size:
        return float("inf")
    return _part_across(linked, updates[-1]) * float(np.linalg.norm(weights) / np.max(weights))


@dataclass(frozen=True)
class _Asked:
    """A sum that is asked for; ``blind_within``: this site may not know of all sums of the same study."""

    row: SummedRow
    blind_within: bool
    any_requester: bool

    def linked_with(self, past: SummedRow) -> bool:
        """Return whether an older sum shares some sites, not all, and unknown sums may complete it."""
        if past.study_digest == self.row.study_digest and (past.away or not self.blind_within):
            return False
        requesters = {past.requester, self.row.requester}
        if not self.any_requester and len(requesters) > 1 and UNKNOWN_REQUESTER not in requesters:
            return False
        before = {weight.site for weight in past.weights} if past.released is None else set(past.released)
        now = {weight.site for weight in self.row.weights}
        return before != now and bool(before & now)


def _part_across(others: Real, newest: Real) -> float:
    """The part of the newest update, of its length, that no few of the others explain. What is no number: 0.

    The others are taken one by one, each time the one nearest to what is left; of a short update fewer than four.
    """
    if not (np.all(np.isfinite(others)) and np.all(np.isfinite(newest)) and np.any(newest)):
        return 0.0
    lengths = np.linalg.norm(others, axis=1)
    rest, left = others[lengths > 0] / lengths[lengths > 0, None], newest / np.linalg.norm(newest)
    for _ in range(min(_FEW, max(1, newest.size // 4))):
        lengths = np.linalg.norm(rest, axis=1)
        rest = rest[lengths > _PARALLEL] / lengths[lengths > _PARALLEL, None]
        if not len(rest):
            break
        nearest = rest[np.argmax(np.abs(rest @ left))]
        left = left - (left @ nearest) * nearest
        rest = rest - np.outer(rest @ nearest, nearest)
    return float(np.linalg.norm(left))
