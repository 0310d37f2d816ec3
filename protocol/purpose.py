"""One table of purposes of a round, and all that follows from each (docs/protocol.md 4, 8, 9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.clauses import Clause
from protocol.parameters import Needs


class RoundState(StrEnum):
    ANNOUNCED = "announced"
    COLLECTING = "collecting"
    LOCKED = "locked"
    MEASURED = "measured"
    COMMITTED = "committed"
    RELEASED = "released"
    RANKED = "ranked"
    CLOSED = "closed"
    SKIPPED = "skipped"
    BURNT = "burnt"


class Purpose(StrEnum):
    """The meaning of a round's vectors; those of a ranking and of a measurement are never summed."""

    UPDATE = "update"
    COUNTS = "counts"
    RANKING = "ranking"
    MEASURE = "measure"
    SUMMARY = "summary"

    @property
    def plan(self) -> PurposePlan:
        """The properties of all rounds of this purpose."""
        return PURPOSE_PLANS[self]


@dataclass(frozen=True)
class PurposePlan:
    """The properties of all rounds of one purpose.

    ``does`` says it to people. ``model_sized``: the vectors are as long as an update. ``opens``: what the requester
    learns about single sites, None for what the rule needs; ``opens_alone`` says so. ``steps_model``: the vectors are
    updates, so the released average steps the model; only they have weights, are isolated and travel as the study's
    protection says. ``of_data``: what is summed is the same in every study, so over whom it was summed is remembered in
    all of them. ``dispensable``: training goes on where it could not be done. ``once``: the clause by which a study has
    one such round that succeeds. ``unusable``: what a site tells the requester whose vector cannot be encoded, which is
    nothing about the vector; empty where the study's rule says it.
    """

    does: str
    model_sized: bool
    opens: Needs | None
    ends_as: RoundState
    steps_model: bool = False
    of_data: bool = False
    dispensable: bool = False
    opens_alone: str = ""
    once: Clause | None = None
    unusable: str = ""

    @property
    def summed(self) -> bool:
        """True if the sum is opened to the sites."""
        return self.ends_as is RoundState.RELEASED

    def opened(self, needs: Needs) -> Needs:
        """Return what such a round opens under a rule with these needs."""
        return needs if self.opens is None else self.opens


PURPOSE_PLANS: Final[Mapping[Purpose, PurposePlan]] = {
    Purpose.RANKING: PurposePlan(
        does="ranks the sites",
        model_sized=False,
        opens=Needs.INNER_PRODUCTS,
        ends_as=RoundState.RANKED,
        dispensable=True,
        opens_alone="a ranking opens inner products, once per study",
        once=Clause.RANKED_ONCE,
        unusable="this site has no ridge regression within the ranking's clip_norm; the numbers stay at this site",
    ),
    Purpose.SUMMARY: PurposePlan(
        does="sums summaries",
        model_sized=False,
        opens=Needs.NOTHING,
        ends_as=RoundState.RELEASED,
        of_data=True,
        dispensable=True,
        opens_alone="nothing is ever opened about summaries but their sum",
        once=Clause.SUMMARISED_ONCE,
        unusable="this site's table has another form, or more rows, than the study's summary takes",
    ),
    Purpose.COUNTS: PurposePlan(
        does="sums class counts",
        model_sized=True,
        opens=Needs.NOTHING,
        ends_as=RoundState.RELEASED,
        of_data=True,
        opens_alone="nothing is ever opened about class counts but their sum",
        once=Clause.COUNTED_ONCE,
    ),
    Purpose.MEASURE: PurposePlan(
        does="measures updates and sums nothing",
        model_sized=True,
        opens=Needs.PAIRS,
        ends_as=RoundState.CLOSED,
        opens_alone="a measurement opens pairs, all weights 1",
    ),
    Purpose.UPDATE: PurposePlan(
        does="sums updates", model_sized=True, opens=None, ends_as=RoundState.RELEASED, steps_model=True
    ),
}
