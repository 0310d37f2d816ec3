"""Whether budgets hold a study before it is created: this site's own, and that of a policy somebody shows."""

from __future__ import annotations

from client_agent.learning.at_requester.finish_table import FinishTable
from client_agent.learning.check_data import fitting_data
from client_agent.settings import AgentSettings
from client_agent.site.budget.accounting import share_used
from client_agent.site.budget.spent_budget import budget_memory
from client_agent.study.asked.most_spent import least_spent
from client_agent.study.spending import require_room_for
from protocol.errors import ConfigurationError
from protocol.policy.site_policy import SitePolicy
from protocol.wire.messages import Roster, Study


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
