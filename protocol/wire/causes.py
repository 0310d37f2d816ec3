"""Why a round or a study ended: fields that code acts on, and texts for people (docs/protocol.md 4, 7, 8)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class OutcomeCause(StrEnum):
    """Why a round was skipped, an attempt burnt, or a round ended that sums nothing."""

    REQUESTER_MISSING = "requester_missing"
    QUERIES_MISSING = "queries_missing"
    RELEASE_SET_MISSING = "release_set_missing"
    GO_MISSING = "go_missing"
    TAGS_FAILED = "tags_failed"
    TOO_FEW_CONTRIBUTORS = "too_few_contributors"
    ANNOUNCED_AT_ONE_SERVER = "announced_at_one_server"
    NOT_AGREED_IN_TIME = "not_agreed_in_time"
    NOT_MEASURED_IN_TIME = "not_measured_in_time"
    ATTEMPTS_BURNT = "attempts_burnt"
    OPENING_AT_ONE_SERVER = "opening_at_one_server"
    CORRELATIONS_LOST = "correlations_lost"
    PRODUCTS_REFUSED = "products_refused"
    SHARE_ALTERED_AT_A = "share_altered_at_a"
    SHARE_ALTERED_AT_B = "share_altered_at_b"
    RANKED = "ranked"
    CLOSED = "closed"

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
SKIP_CAUSES: Final = frozenset(OutcomeCause) - {
    OutcomeCause.CORRELATIONS_LOST,
    OutcomeCause.PRODUCTS_REFUSED,
    OutcomeCause.RANKED,
    OutcomeCause.CLOSED,
}
BURN_CAUSES: Final = frozenset({OutcomeCause.CORRELATIONS_LOST, OutcomeCause.PRODUCTS_REFUSED})
RANKED_CAUSES: Final = frozenset({OutcomeCause.RANKED, OutcomeCause.OPENING_AT_ONE_SERVER})
CLOSED_CAUSES: Final = frozenset({OutcomeCause.CLOSED, OutcomeCause.OPENING_AT_ONE_SERVER})

_TEXTS: Final = {
    OutcomeCause.REQUESTER_MISSING: "the requester's own contribution is missing",
    OutcomeCause.QUERIES_MISSING: "the requester's queries are missing",
    OutcomeCause.RELEASE_SET_MISSING: "the requester's release set is missing",
    OutcomeCause.GO_MISSING: "the requester's word that the sum's tags are right is missing",
    OutcomeCause.TAGS_FAILED: "the sum's tags are wrong; nothing was opened",
    OutcomeCause.TOO_FEW_CONTRIBUTORS: "{found} contributors, the announcement asks for at least {needed}",
    OutcomeCause.ANNOUNCED_AT_ONE_SERVER: "the other server never got the announcement",
    OutcomeCause.NOT_AGREED_IN_TIME: "the two servers could not agree on the set in time",
    OutcomeCause.NOT_MEASURED_IN_TIME: "the two servers could not measure the updates in time",
    OutcomeCause.ATTEMPTS_BURNT: "{found} attempts were burnt",
    OutcomeCause.OPENING_AT_ONE_SERVER: "one server has its opening, the other could not make its own",
    OutcomeCause.CORRELATIONS_LOST: "side A lost the attempt's correlations before the products were done",
    OutcomeCause.PRODUCTS_REFUSED: "the products were refused",
    OutcomeCause.SHARE_ALTERED_AT_A: "server A no longer holds what {site} sent, by its own word: its disk was altered",
    OutcomeCause.SHARE_ALTERED_AT_B: "server B no longer holds what {site} sent, by its own word: its disk was altered",
    OutcomeCause.RANKED: "the losses are opened to the requester; nothing is summed",
    OutcomeCause.CLOSED: "what was measured is opened to the requester; nothing is summed",
}


def outcome_text(cause: OutcomeCause, found: int | None, needed: int | None, site: str | None = None) -> str:
    """Return the text about an outcome that a person reads."""
    return _TEXTS[cause].format(found=found, needed=needed, site=site or "a site")


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
