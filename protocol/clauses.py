"""The clauses of a site's policy, by name: a field of every refusal, never part of a text (docs/protocol.md 9)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Clause(StrEnum):
    """The demand that a study, a round or a model broke."""

    SAME_ROUND = "same_round"
    ANNOUNCED_SITES = "announced_sites"
    CONTRIBUTORS_ONLY = "contributors_only"
    GRID = "grid"
    LEAST_NUMBER = "least_number"
    ENOUGH_CONTRIBUTORS = "enough_contributors"
    LARGEST_SHARE = "largest_share"
    NEVER_RISES = "never_rises"
    MODEL_VERSION = "model_version"
    MODEL_BEHIND = "model_behind"
    OUTCOME_UNKNOWN = "outcome_unknown"
    SAME_SUM_AGAIN = "same_sum_again"
    MEASURED_FOR_NOTHING = "measured_for_nothing"
    MAY_OPEN = "may_open"
    ALLOW_CKKS = "allow_ckks"
    DISCARDED_SUMS = "discarded_sums"
    ALTERED_SUM = "altered_sum"
    MEASURED_TWICE = "measured_twice"
    COUNTED_ONCE = "counted_once"
    COHORT = "cohort"
    QUESTION = "question"
    MAY_RANK = "may_rank"
    RANKED_ONCE = "ranked_once"
    MAY_SUMMARISE = "may_summarise"
    SUMMARISED_ONCE = "summarised_once"
    SECOND_MOMENTS = "second_moments"
    RANKING_PENALTY = "ranking_penalty"
    LEFT_OUT_TWICE = "left_out_twice"
    ISOLATION = "isolation"
    MEMORY_UNRECONCILED = "memory_unreconciled"
    LARGEST_STEP = "largest_step"
    LARGEST_PATH = "largest_path"
    MAY_PRETRAIN = "may_pretrain"
    FIRST_MODEL = "first_model"
    NOISE = "noise"
    BUDGET_SPENT = "budget_spent"
    BUDGET_UNRECONCILED = "budget_unreconciled"
    LEFT = "left"
    PAUSED = "paused"
    KEYS_RENEWED = "keys_renewed"
    QUIET_HOURS = "quiet_hours"

    @property
    def passes(self) -> bool:
        """True if the refusal may pass: the site lacks a release, its evidence or a receipt, asks for another list, or
        waits.
        """
        return self in _PASSING


_PASSING: Final = frozenset(
    {
        Clause.MODEL_BEHIND,
        Clause.OUTCOME_UNKNOWN,
        Clause.MEMORY_UNRECONCILED,
        Clause.BUDGET_UNRECONCILED,
        Clause.ISOLATION,
        Clause.PAUSED,
        Clause.KEYS_RENEWED,
        Clause.QUIET_HOURS,
    }
)
