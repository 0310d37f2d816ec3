"""Why a site declines: the clause that broke, in front of what was found and what is allowed (docs/protocol.md 9)."""

from __future__ import annotations

from enum import StrEnum

from protocol.errors import PolicyRefusal


class Clause(StrEnum):
    """Names of the clauses, as they stand in front of a refusal's text."""

    SAME_ROUND = "same_round"
    ANNOUNCED_SITES = "announced_sites"
    CONTRIBUTORS_ONLY = "contributors_only"
    GRID = "grid"
    LEAST_NUMBER = "least_number"
    ENOUGH_CONTRIBUTORS = "enough_contributors"
    LARGEST_SHARE = "largest_share"
    NEVER_RISES = "never_rises"
    MODEL_VERSION = "model_version"
    OUTCOME_UNKNOWN = "outcome_unknown"
    SAME_SUM_AGAIN = "same_sum_again"
    MEASURED_FOR_NOTHING = "measured_for_nothing"
    MAY_OPEN = "may_open"
    ALLOW_CKKS = "allow_ckks"
    MEASURED_TWICE = "measured_twice"
    COUNTED_ONCE = "counted_once"
    MAY_RANK = "may_rank"
    RANKED_ONCE = "ranked_once"
    RANKING_PENALTY = "ranking_penalty"
    LEFT_OUT_TWICE = "left_out_twice"


class OutcomeUnknown(PolicyRefusal):
    """This site has not seen how an earlier round ended; with that evidence it would take part."""


def refusal(clause: Clause, detail: str) -> PolicyRefusal:
    """The error whose text begins with the clause."""
    return PolicyRefusal(f"{clause.value}: {detail}")
