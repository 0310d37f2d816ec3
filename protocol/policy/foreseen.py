"""Feasibility of a study, checked before it is created (docs/protocol.md 9).

A site's policy says how many sites must stand behind every sum, and how much of it may be its own. With the sites of a
roster that is known beforehand: at best all of them are listed, with equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.clauses import Clause
from protocol.errors import PolicyRefusal
from protocol.policy.check import RuleTerms, Terms, check_for_every_site
from protocol.policy.memory import SiteMemory
from protocol.policy.refusals import refusal
from protocol.policy.site_policy import SitePolicy
from protocol.wire.messages import Announcement, ListedWeight, Purpose, Study, WeightList

_UNSAID = "0" * 64


@dataclass(frozen=True)
class Foreseen:
    """``refused``: why even the best list would be declined. Without one, ``spare`` contributors may be missing."""

    refused: PolicyRefusal | None
    spare: int = 0


def foresee(study: Study, contributors: tuple[str, ...], rule: RuleTerms, policy: SitePolicy) -> Foreseen:
    """The list of all ``contributors`` with weight 1, and how many of them such a list can do without."""
    terms = Terms(study.parameters, contributors, rule, policy)
    refused = _refusal(study, contributors, terms)
    if refused is not None:
        return Foreseen(refused)
    spare = 0
    while spare + 1 < len(contributors) and _refusal(study, contributors[spare + 1 :], terms) is None:
        spare += 1
    return Foreseen(None, spare)


def _refusal(study: Study, listed: tuple[str, ...], terms: Terms) -> PolicyRefusal | None:
    """Return the refusal of a list of these sites alone; the largest least number is the easiest on every clause."""
    least, grid = study.parameters.least_contributors, study.parameters.weight_grid
    digest = study.digest()
    if len(listed) < least:
        detail = f"the study needs {least} contributors, {len(listed)} are there"
        return refusal(Clause.ENOUGH_CONTRIBUTORS, detail)
    weights = tuple(ListedWeight(site=site, numerator=grid) for site in listed)
    weight_list = WeightList(study_digest=digest, round=1, grid=grid, weights=weights, salt=_UNSAID)
    announcement = Announcement(
        study_digest=digest,
        round=1,
        listed=listed,
        least_contributors=len(listed),
        opens=Purpose.UPDATE.plan.opened(terms.rule.needs),
        model_version=0,
        model_digest=_UNSAID,
        weight_list_digest=weight_list.digest(),
        closes_at_s=0,
    )
    try:
        check_for_every_site(announcement, weight_list, terms, SiteMemory())
    except PolicyRefusal as refused:
        return refused
    return None
