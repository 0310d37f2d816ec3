"""Tables of a round's purposes, protections and causes of its end (docs/protocol.md 2 to 4, 7 to 9, 11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from protocol.errors import Clause
from protocol.parameters import Needs
from protocol.sharing import Side


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


class StudyProtection(StrEnum):
    """The protection of single updates: additive shares at two servers, or ciphertexts that server A adds."""

    SHARES = "shares"
    CKKS = "ckks"

    @property
    def plan(self) -> ProtectionPlan:
        return PROTECTION_PLANS[self]

    def of(self, purpose: Purpose) -> StudyProtection:
        """The protection in a study's rounds of one purpose: all but updates travel as shares."""
        return self if purpose.plan.steps_model else StudyProtection.SHARES

    @classmethod
    def under(cls, key_id: str | None) -> StudyProtection:
        """The protection of a round whose announcement names this key of the sites."""
        return cls.SHARES if key_id is None else cls.CKKS


class RoundStep(StrEnum):
    """The servers' steps in a round that not every round has."""

    TOSS = "toss"
    """Both lock the set that both hold, and draw a challenge."""
    MULTIPLY = "multiply"
    """Both measure single sites and open to the requester what the rule needs."""
    MASK = "mask"
    """One side hands its sum to the other under a mask; each serves a half."""
    COUNTERSIGN = "countersign"
    """B signs what A alone knows: the set, and the sum as the round's one end."""


@dataclass(frozen=True)
class ProtectionPlan:
    """The properties of rounds under one protection.

    ``name`` as runs are called by it. ``holders``: the servers that get a part of an update. ``keyed``: the sites
    encrypt under a key that they all have, and whether a sum is what it should be shows. ``rounded``: an update is
    rounded to fixed point, by less than one unit per coordinate, before it leaves its site.
    """

    name: str
    holders: frozenset[Side]
    steps: frozenset[RoundStep]
    keyed: bool
    rounded: bool

    @property
    def opens(self) -> bool:
        """True if something about single sites can be opened to the requester."""
        return RoundStep.MULTIPLY in self.steps


USUAL_PROTECTION: Final = StudyProtection.SHARES
"""The protection of a study that names none."""

PROTECTION_PLANS: Final[Mapping[StudyProtection, ProtectionPlan]] = {
    StudyProtection.SHARES: ProtectionPlan(
        name="secure",
        holders=frozenset(Side),
        steps=frozenset({RoundStep.TOSS, RoundStep.MULTIPLY, RoundStep.MASK}),
        keyed=False,
        rounded=True,
    ),
    StudyProtection.CKKS: ProtectionPlan(
        name="ckks",
        holders=frozenset({Side.A}),
        steps=frozenset({RoundStep.COUNTERSIGN}),
        keyed=True,
        rounded=False,
    ),
}


class OutcomeCause(StrEnum):
    """Why a round was skipped, an attempt burnt, or a round ended that sums nothing; ``words`` say it to people."""

    words: str

    def __new__(cls, value: str, words: str) -> Self:
        """Make the member of this value."""
        cause = str.__new__(cls, value)
        cause._value_, cause.words = value, words
        return cause

    REQUESTER_MISSING = "requester_missing", "the requester's own contribution is missing"
    QUERIES_MISSING = "queries_missing", "the requester's queries are missing"
    RELEASE_SET_MISSING = "release_set_missing", "the requester's release set is missing"
    GO_MISSING = "go_missing", "the requester's word that the sum's tags are right is missing"
    TAGS_FAILED = "tags_failed", "the sum's tags are wrong; nothing was opened"
    TOO_FEW_CONTRIBUTORS = "too_few_contributors", "{found} contributors, the announcement asks for at least {needed}"
    ANNOUNCED_AT_ONE_SERVER = "announced_at_one_server", "the other server never got the announcement"
    NOT_AGREED_IN_TIME = "not_agreed_in_time", "the two servers could not agree on the set in time"
    NOT_MEASURED_IN_TIME = "not_measured_in_time", "the two servers could not measure the updates in time"
    ATTEMPTS_BURNT = "attempts_burnt", "{found} attempts were burnt"
    OPENING_AT_ONE_SERVER = "opening_at_one_server", "one server has its opening, the other could not make its own"
    CORRELATIONS_LOST = "correlations_lost", "side A lost the attempt's correlations before the products were done"
    PRODUCTS_REFUSED = "products_refused", "the products were refused"
    SHARE_ALTERED_AT_A = (
        "share_altered_at_a",
        "server A no longer holds what {site} sent, by its own word: its disk was altered",
    )
    SHARE_ALTERED_AT_B = (
        "share_altered_at_b",
        "server B no longer holds what {site} sent, by its own word: its disk was altered",
    )
    RANKED = "ranked", "the losses are opened to the requester; nothing is summed"
    CLOSED = "closed", "what was measured is opened to the requester; nothing is summed"

    def said(self, found: int | None = None, needed: int | None = None, site: str | None = None) -> str:
        """The cause in words, with the numbers and the site that it speaks of."""
        return self.words.format(found=found, needed=needed, site=site or "a site")

    @property
    def requester_absent(self) -> bool:
        """True if the requester's own silence caused it: enough of these in a row pause the study."""
        return self in _REQUESTER_ABSENT


_REQUESTER_ABSENT: Final = frozenset(
    {
        OutcomeCause.REQUESTER_MISSING,
        OutcomeCause.QUERIES_MISSING,
        OutcomeCause.RELEASE_SET_MISSING,
        OutcomeCause.GO_MISSING,
    }
)
_NO_SKIP: Final = (
    OutcomeCause.CORRELATIONS_LOST,
    OutcomeCause.PRODUCTS_REFUSED,
    OutcomeCause.RANKED,
    OutcomeCause.CLOSED,
)
CAUSES: Final[Mapping[RoundState, frozenset[OutcomeCause]]] = {
    RoundState.SKIPPED: frozenset(OutcomeCause).difference(_NO_SKIP),
    RoundState.BURNT: frozenset({OutcomeCause.CORRELATIONS_LOST, OutcomeCause.PRODUCTS_REFUSED}),
    RoundState.RANKED: frozenset({OutcomeCause.RANKED, OutcomeCause.OPENING_AT_ONE_SERVER}),
    RoundState.CLOSED: frozenset({OutcomeCause.CLOSED, OutcomeCause.OPENING_AT_ONE_SERVER}),
}
"""The causes of each end without a sum."""


class EndCause(StrEnum):
    """Why the requester ended a study."""

    ALL_ROUNDS_DONE = "all_rounds_done"
    LOCAL_OPTIMUM = "local_optimum"
    NO_CONTRIBUTOR_NEEDED = "no_contributor_needed"
    POLICY = "policy"
    TOO_FEW_CONTRIBUTORS = "too_few_contributors"
    TOO_FEW_WILLING = "too_few_willing"
    STUDY_REFUSED = "study_refused"
    COUNTS_OUT_OF_BOUNDS = "counts_out_of_bounds"
    COUNTS_NOT_SUMMED = "counts_not_summed"
    NOT_SUMMARISED = "not_summarised"
    CLASS_WITHOUT_EXAMPLE = "class_without_example"
    UPDATE_UNUSABLE = "update_unusable"
    PROTOCOL_BROKEN = "protocol_broken"
    ISOLATION = "isolation"
    SUM_TOO_LONG = "sum_too_long"
    SUMS_DISCARDED = "sums_discarded"
    SERVER_DEVIATED = "server_deviated"
    ROUND_NOT_ENDED = "round_not_ended"
    BUDGET_SPENT = "budget_spent"
    CANCELLED = "cancelled"
