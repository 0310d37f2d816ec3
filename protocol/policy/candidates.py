"""The lists that a requester may announce for the next sum of updates, in the order in which it tries them."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.wire.messages import ListedWeight

Weights = tuple[ListedWeight, ...]


@dataclass(frozen=True)
class Numerators:
    """A rule's list: the contributors' numerators and the requester's own, None for the grid."""

    weights: Weights
    requester: int | None = None


@dataclass(frozen=True)
class Candidate:
    """A list with the requester's numerator, None for the grid, and the least number of contributors in its sum."""

    weights: Weights
    least: int
    requester: int | None = None


def candidates(
    rules: Numerators,
    last: Numerators,
    least: int,
    *,
    may_change: bool,
    careful: bool,
    too_few: bool,
    declined: Candidate | None,
) -> tuple[Candidate, ...]:
    """The rule's list where it may change now, then the last sum's; where ``careful``, all who are listed are needed.

    Where updates move little, a sum without one of them shows that one. ``too_few``: the last round had no sum, so the
    study's least number is tried first. ``declined`` is what a site refused since the last sum because of what it would
    have given away; it does not come again.
    """
    lists = (rules, last) if may_change or not last.weights else (last,)
    fewer = (least,) if too_few else ()
    found = [
        Candidate(one.weights, number, one.requester)
        for one in lists
        for number in ((*fewer, len(one.weights)) if careful else (least,))
        if 0 < number <= len(one.weights)
    ]
    return tuple(one for one in dict.fromkeys(found) if one != declined)
