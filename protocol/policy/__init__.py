"""What a site demands of a weight list before it contributes, whoever runs the servers (docs/protocol.md 9).

:class:`SitePolicy` holds the site's own bounds, :class:`SiteMemory` what it remembers from round to round;
:func:`check_weight_list` asks every clause.
"""

from protocol.policy.check import check_for_every_site, check_weight_list
from protocol.policy.clauses import (
    MEASURED_ROUNDS_PER_MODEL,
    TIMES_LEFT_OUT,
    check_announced_sites,
    check_contributors_only,
    check_counted_once,
    check_enough_contributors,
    check_grid,
    check_largest_share,
    check_least_number,
    check_left_out_twice,
    check_measured_twice,
    check_model_version,
    check_needs_allowed,
    check_never_rises,
    check_opens,
    check_outcome_known,
    check_penalty_allowed,
    check_protection_allowed,
    check_ranked_once,
    check_ranking_allowed,
    check_same_round,
    check_same_sum_again,
    check_study_allowed,
    check_uninformative,
)
from protocol.policy.memory import (
    LeftOut,
    ReleasedSum,
    SiteMemory,
    remember_contribution,
    remember_left_out,
    remember_release,
    remember_skip,
)
from protocol.policy.refusals import Clause, OutcomeUnknown
from protocol.policy.site_policy import SitePolicy

__all__ = [
    "MEASURED_ROUNDS_PER_MODEL",
    "TIMES_LEFT_OUT",
    "Clause",
    "LeftOut",
    "OutcomeUnknown",
    "ReleasedSum",
    "SiteMemory",
    "SitePolicy",
    "check_announced_sites",
    "check_contributors_only",
    "check_counted_once",
    "check_enough_contributors",
    "check_for_every_site",
    "check_grid",
    "check_largest_share",
    "check_least_number",
    "check_left_out_twice",
    "check_measured_twice",
    "check_model_version",
    "check_needs_allowed",
    "check_never_rises",
    "check_opens",
    "check_outcome_known",
    "check_penalty_allowed",
    "check_protection_allowed",
    "check_ranked_once",
    "check_ranking_allowed",
    "check_same_round",
    "check_same_sum_again",
    "check_study_allowed",
    "check_uninformative",
    "check_weight_list",
    "remember_contribution",
    "remember_left_out",
    "remember_release",
    "remember_skip",
]
