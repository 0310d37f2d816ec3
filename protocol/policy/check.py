"""All clauses in order: at a site before it contributes, at the requester before it announces (docs/protocol.md 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from protocol.parameters import Needs, StudyParameters
from protocol.policy import clauses
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.rules.risk.terms import RiskRule
from protocol.wire.messages import Announcement, WeightList


class RuleTerms(Protocol):
    """The facts about a study's rule that clauses need."""

    @property
    def needs(self) -> Needs: ...

    @property
    def weights_never_rise(self) -> bool: ...

    @property
    def selects(self) -> bool:
        """Being left out says nothing: the rule releases only some sites."""
        ...


@dataclass(frozen=True)
class Terms:
    """The terms of every round's judgement: the study's numbers and rule, the roster's sites, the site's policy."""

    parameters: StudyParameters
    contributors: tuple[str, ...]
    rule: RuleTerms
    policy: SitePolicy


def check_weight_list(
    site: str,
    announcement: Announcement,
    weight_list: WeightList,
    terms: Terms,
    memory: SiteMemory,
    own_weight: float | None = None,
) -> None:
    """Every clause that ``site`` demands before it contributes to the announced round.

    ``own_weight`` is the weight that the site gives itself under a self-weighted rule, None where the list's counts
    (and in a round of class counts or a ranking).
    Raises: PolicyRefusal whose detail begins with the clause and says what was found and what is allowed;
            OutcomeUnknown when only the evidence of an earlier round's end is missing;
            ProtocolViolation when ``own_weight`` is outside [1/grid, 1]
    """
    parameters, policy = terms.parameters, terms.policy
    clauses.check_same_round(announcement, weight_list)
    clauses.check_announced_sites(site, announcement, weight_list)
    clauses.check_contributors_only(announcement, terms.contributors)
    weighs_requester = isinstance(terms.rule, RiskRule) and announcement.purpose.plan.steps_model
    clauses.check_grid(weight_list, parameters, weighs_requester)
    if own_weight is not None or not announcement.purpose.plan.steps_model:
        clauses.check_uninformative(weight_list)
    clauses.check_least_number(announcement, parameters, memory)
    clauses.check_enough_contributors(announcement, parameters, policy)
    clauses.check_largest_share(site, announcement, weight_list, parameters, policy, own_weight)
    if terms.rule.weights_never_rise:
        clauses.check_never_rises(weight_list, memory)
    clauses.check_model_version(announcement, memory)
    clauses.check_outcome_known(announcement, memory)
    clauses.check_once(announcement, memory)
    clauses.check_same_sum_again(announcement, weight_list, memory)
    clauses.check_opens(announcement, _opened(terms.rule, announcement), policy)
    clauses.check_measured_twice(announcement, memory)
    if not terms.rule.selects:
        clauses.check_left_out_twice(announcement, memory)


def _opened(rule: RuleTerms, announcement: Announcement) -> Needs:
    """Return what the rule opens in such a round: nothing apart from sums, unless it says that it measures so."""
    plan = announcement.purpose.plan
    if plan.summed or not plan.model_sized:
        return rule.needs
    apart = isinstance(rule, RiskRule) and rule.measures
    return plan.opened(rule.needs) if apart else Needs.NOTHING


def check_for_every_site(announcement: Announcement, weight_list: WeightList, terms: Terms, memory: SiteMemory) -> None:
    """The sites' policy as the requester runs it before it announces (docs/protocol.md 4).

    Weights that sites give themselves are theirs alone to check.
    Raises: PolicyRefusal
    """
    for site in announcement.listed:
        check_weight_list(site, announcement, weight_list, terms, memory)
