"""A site's spending of its privacy budget, study by study and together, as people read it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from client_agent.site.budget.accounting import accountant
from client_agent.site.budget.spent_budget import BudgetMemory
from protocol.policy.site_policy import SitePolicy


class StudySpent(BaseModel):
    """One study's own spending; together they spend less than the sum."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    study: str
    study_digest: str
    trainings: int
    epsilon: float


class BudgetReport(BaseModel):
    """``epsilon`` is the site's budget, ``used`` how much of it is used (1: all), both None where it has none.

    ``spent`` is epsilon of all studies together, at ``delta``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    epsilon: float | None
    delta: float
    spent: float
    used: float | None
    accountant: str
    studies: tuple[StudySpent, ...]
    uncovered_rounds: int


def budget_report(budget: BudgetMemory, policy: SitePolicy) -> BudgetReport:
    """The count as it stands."""
    every = budget.trainings
    studies = {one.study_digest: one for one in every}
    digests = [one.study_digest for one in every]
    return BudgetReport(
        epsilon=policy.epsilon,
        delta=policy.delta,
        spent=budget.epsilon(policy.delta),
        used=budget.share_used(policy),
        accountant=accountant(),
        studies=tuple(
            StudySpent(
                study=one.study,
                study_digest=digest,
                trainings=digests.count(digest),
                epsilon=budget.epsilon(policy.delta, digest),
            )
            for digest, one in studies.items()
        ),
        uncovered_rounds=len(budget.spent.uncovered),
    )
