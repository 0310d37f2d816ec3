"""What a study with noise would spend if all its rounds take place, before any does (docs/protocol.md 19, 21)."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.site.budget.accounting import accountant, epsilon_of
from client_agent.study.spending import training_of
from protocol.wire.messages import PrivacyUnit, Roster, Study


@dataclass(frozen=True)
class ForeseenEpsilon:
    """``epsilon`` at ``delta`` for one ``unit``, over all ``rounds`` of the study alone.

    ``examples``: of unit ``record`` it is that of a site with so many, the fewest that any declares; others spend less.
    Of unit ``site`` every site spends the same, and it is None.
    """

    unit: PrivacyUnit
    epsilon: float
    delta: float
    rounds: int
    examples: int | None
    accountant: str

    @property
    def words(self) -> str:
        """One line for a person."""
        what = "a whole site" if self.unit == "site" else f"one record at a site of {self.examples} examples"
        spent = f"epsilon {self.epsilon:.3f} at delta {self.delta:g}"
        return f"{spent} of {what} over {self.rounds} rounds ({self.accountant})"


def foreseen_epsilon(study: Study, roster: Roster, delta: float) -> ForeseenEpsilon | None:
    """At the site that would spend most, by what the roster declares; None for a study without noise."""
    if study.privacy is None:
        return None
    examples = None
    if study.privacy.unit == "record":
        examples = min(party.samples or 1 for party in roster.sites)
    steps = training_of(study, study.privacy, examples or 1, 1).times(study.rounds)
    epsilon = epsilon_of([steps], delta)
    return ForeseenEpsilon(study.privacy.unit, epsilon, delta, study.rounds, examples, accountant())
