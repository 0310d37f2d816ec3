"""The sums of updates that a site knows of (docs/protocol.md 13).

A row is one round's weights over the contributors, the requester left out: what it adds to a sum it knows. Columns
are the sites' keys, so that rows of other studies over the same data count, whatever the sites are called there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

UNKNOWN_REQUESTER: Final = ""
"""Who asked is not known: may be anybody."""


class SummedWeight(BaseModel):
    """The weight of one site's update in a sum; ``site`` is its key's fingerprint."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    site: str
    weight: Annotated[float, Field(gt=0, le=1)]


class SummedRow(BaseModel):
    """One round's sum, or the sums that its announcement admits while nobody has shown how it ended.

    ``released`` are the contributors whose sum was opened, None while that is unknown; ``least`` is the announced
    least number of them. ``dimension`` is the length of an update, ``layers`` the names and sizes that make it up,
    ``noise`` the squared length of the sum's noise. ``own`` is set where sites weigh themselves: its weight, the
    only one that this site knows; the others' are a guess. ``requester`` is the key of the site that asked for it,
    ``model_version`` is the announced one, on which nothing rests. ``away``, which is not stored:
    this site was not in the sum, and another of its updates stands in for it. ``servers_noise`` stands in rows that
    older versions stored; it is not used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    study_digest: str
    round: Annotated[int, Field(ge=1)]
    dimension: Annotated[int, Field(ge=1)]
    weights: tuple[SummedWeight, ...]
    least: Annotated[int, Field(ge=0)]
    released: tuple[str, ...] | None = None
    noise: Annotated[float, Field(ge=0)] = 0.0
    own: SummedWeight | None = None
    layers: tuple[tuple[str, int], ...] = ()
    requester: str = UNKNOWN_REQUESTER
    model_version: Annotated[int, Field(ge=0)] = 0
    servers_noise: float = Field(default=0.0, exclude=True)
    away: bool = Field(default=False, exclude=True)

    @property
    def name(self) -> tuple[str, int]:
        """Study and round."""
        return self.study_digest, self.round

    @property
    def settled(self) -> bool:
        """True if a release named who was summed."""
        return self.released is not None

    @property
    def possible(self) -> int:
        """In how many ways the round can have ended."""
        return 1 if self.settled else release_sets_number(len(self.weights), self.least)

    def sums(self) -> tuple[tuple[str, ...], ...]:
        """The sets of contributors of which one was summed, as far as is known."""
        if self.released is not None:
            return (self.released,)
        return release_sets(tuple(weight.site for weight in self.weights), self.least)


def release_sets_number(listed: int, least: int) -> int:
    """Return the number of release sets that an announcement admits; 1 where it admits none: nothing is opened."""
    return sum(math.comb(listed, size) for size in range(least, listed + 1)) or 1


def release_sets(listed: Sequence[str], least: int) -> tuple[tuple[str, ...], ...]:
    """Every release set that an announcement admits, without the requester; the whole list first.

    Those count too that leave a site out: their sum may complete an older one. Where there are too few for any, as
    after a refusal of one whom the sum needed, nothing is opened, and the rounds before count as they did.
    """
    sizes = range(len(listed), least - 1, -1)
    return tuple(chosen for size in sizes for chosen in combinations(listed, size)) or ((),)
