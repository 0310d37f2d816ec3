"""The lists that a requester may announce for the next sum of updates, in the order in which it tries them."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.wire.messages import ListedWeight

Weights = tuple[ListedWeight, ...]


@dataclass(frozen=True)
class Candidate:
    """A list with the requester's numerator, None for the grid, and the least number of contributors in its sum."""

    weights: Weights
    least: int
    requester: int | None = None


def candidates(
    weights: Weights,
    last: Weights,
    least: int,
    *,
    may_change: bool,
    careful: bool,
    too_few: bool,
    declined: Candidate | None,
    requester: int | None = None,
    last_requester: int | None = None,
) -> tuple[Candidate, ...]:
    """The rule's list where it may change now, then the last sum's; where ``careful``, all who are listed are needed.

    Where updates move little, a sum without one of them shows that one. ``too_few``: the last round had no sum, so the
    study's least number is tried first. ``declined`` is what a site refused since the last sum because of what it would
    have given away; it does not come again.
    """
    new, old = (weights, requester), (last, last_requester)
    lists = (new, old) if may_change or not last else (old,)
    fewer = (least,) if too_few else ()
    found = [
        Candidate(one, number, own)
        for one, own in lists
        for number in ((*fewer, len(one)) if careful else (least,))
        if 0 < number <= len(one)
    ]
    return tuple(one for one in dict.fromkeys(found) if one != declined)
