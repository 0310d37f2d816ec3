"""A study's part of a site's privacy budget: asked for before it starts, spent round by round (docs/protocol.md 19)."""

from __future__ import annotations

from client_agent.learning.private.drawn_rows import steps_of
from client_agent.site.budget.spent_budget import BudgetMemory, Training
from client_agent.site.context import SiteContext
from client_agent.site.reconciling import reconcile_budget
from protocol.messages.control import PrivacySpec, Study
from protocol.policy.site_policy import SitePolicy


def training_of(study: Study, privacy: PrivacySpec, examples: int, round_number: int) -> Training:
    """Return the cost of one round of a study to a site with so many training examples."""
    return Training(
        study_digest=study.digest(),
        study=study.name,
        round=round_number,
        examples=examples,
        batch_size=study.training.batch_size,
        steps=steps_of(examples, study.training),
        noise_multiplier=privacy.noise_multiplier,
    )


def require_room_for(study: Study, examples: int, budget: BudgetMemory, policy: SitePolicy) -> None:
    """The budget holds all of the study's rounds that are still to come.

    Raises: PolicyRefusal, clause ``budget_spent``
    """
    if study.privacy is None:
        return
    digest = study.digest()
    begun = len({one.round for one in budget.trainings if one.study_digest == digest})
    if begun < study.rounds:
        training = training_of(study, study.privacy, examples, begun + 1)
        budget.require_room(training, study.rounds - begun, policy)


def spend(context: SiteContext, study: Study, examples: int, round_number: int) -> None:
    """Before a training with noise begins: it is counted, durably, or it does not begin.

    Raises: PolicyRefusal, clause ``budget_spent`` or ``budget_unreconciled``; Unavailable, while the policy has a
            budget and a server cannot be asked for its receipts
    """
    if study.privacy is not None:
        reconcile_budget(context)
        context.budget.charge(training_of(study, study.privacy, examples, round_number), context.policy)
