"""Foresee by policies and budgets whether this roster can federate a study at all, before it is created."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from client_agent.learning.at_requester.finish_table import FinishTable
from client_agent.learning.check_data import fitting_data
from client_agent.settings import AgentSettings
from client_agent.site.budget.accounting import share_used
from client_agent.site.budget.spent_budget import budget_memory
from client_agent.study.asked.most_spent import least_spent
from client_agent.study.spending import require_room_for
from host.settings import read_text
from protocol.configuration import parse_toml, validated
from protocol.errors import ConfigurationError, PolicyRefusal
from protocol.messages.control import Roster, RuleName, Study
from protocol.policy.clauses import foresee
from protocol.policy.site_policy import SitePolicy, check_study_allowed, list_terms
from protocol.rules.registry import rule_for


class _Shown(BaseModel):
    """The one table that is read of what another site shows."""

    model_config = ConfigDict(extra="ignore")
    policy: SitePolicy


def require_federated(study: Study, roster: Roster, own: SitePolicy, shown: tuple[Path, ...] = ()) -> tuple[str, ...]:
    """Remarks for the requester about a study that this policy and those in ``shown`` let begin.

    Raises: PolicyRefusal of the own policy; ConfigurationError when a policy would decline every list
    """
    check_study_allowed(study, own)
    remarks = _foreseen(study, roster, own, "this site's policy")
    for path in shown:
        policy = _policy_in(path)
        try:
            check_study_allowed(study, policy)
        except PolicyRefusal as refused:
            raise ConfigurationError(f"the policy in {path} refuses the study: {refused.detail}") from None
        _foreseen(study, roster, policy, f"the policy in {path}")
        require_shown_budget(study, roster, policy, f"the policy in {path}")
    return remarks


def _foreseen(study: Study, roster: Roster, policy: SitePolicy, whose: str) -> tuple[str, ...]:
    if study.rule.name is RuleName.LOCAL:
        return ()
    contributors = tuple(party.name for party in roster.contributors)
    rule = rule_for(
        study.rule,
        batch_size=study.training.batch_size,
        grid=study.parameters.weight_grid,
        terms=list_terms(study, policy, 1),
    )
    found = foresee(study, contributors, rule, policy)
    count = len(contributors)
    if found.refused is not None:
        raise ConfigurationError(
            f"NOT FEDERATED: {whose} declines every list that the roster's {count} contributors allow, so this site "
            f"would train alone: {found.refused.detail}; enrol more sites, or lower what the policy asks for "
            "(assumed_colluders, least_contributors; a larger largest_share) where that may be"
        )
    if not found.spare:
        return (
            f"each of the roster's {count} contributors must be in every sum: when one stays away, fails a check or is "
            "given no weight by the rule, the shared part ends and this site trains alone (LOCAL_ONLY)",
        )
    return ()


def _policy_in(path: Path) -> SitePolicy:
    """The [policy] of another site's settings, or of a file that has nothing else. Raises: ConfigurationError"""
    return validated(_Shown, parse_toml(read_text(path), str(path)), str(path)).policy


def require_own_budget(study: Study, settings: AgentSettings, came_with: str, finish: FinishTable | None) -> None:
    """All rounds fit into what is left of this site's budget. Raises: PolicyRefusal, ConfigurationError"""
    if study.privacy is None:
        return
    train = fitting_data(study, settings.data, None).train
    seen = train if finish is None else finish.parts(train, 0)[0]
    require_room_for(study, len(seen), budget_memory(settings.state_dir, came_with), settings.policy)


def require_shown_budget(study: Study, roster: Roster, policy: SitePolicy, whose: str) -> None:
    """An unspent budget holds the study at one declared number of samples at least: else it does at no contributor.

    Raises: ConfigurationError
    """
    if study.privacy is None or policy.epsilon is None:
        return
    epsilon, counts = policy.epsilon, {party.samples or 1 for party in roster.contributors}
    samples, needed = least_spent(
        study, study.privacy, counts, lambda steps: share_used([steps], epsilon, policy.delta)
    )
    if needed > 1:
        raise ConfigurationError(
            f"{whose} has a privacy budget of epsilon {policy.epsilon:g} at delta {policy.delta:g}, and the study's "
            f"{study.rounds} rounds use {needed:.0%} of it at a contributor of {samples} samples, more at all others: "
            "take more noise, smaller batches or fewer rounds"
        )
