"""A study's part of a site's privacy budget, foreseen and spent round by round (docs/protocol.md 19)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client_agent.learning.sampling import steps_of
from client_agent.site.context import SiteContext, reconcile_budget
from client_agent.site.privacy_budget import BudgetMemory, Steps, Training, accountant, epsilon_of
from protocol.messages.control import PrivacySpec, Roster, Study
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


def most_spent(
    study: Study, privacy: PrivacySpec, counts: Iterable[int], spent: Callable[[Steps], float]
) -> tuple[int, float]:
    """The number of examples that spends most over all rounds, and how much; exactly, by few calls of ``spent``.

    Fewer examples are drawn more often, but take fewer steps, since their batches are rounded up. So groups of
    neighbours are looked at by a bound, the probability of the least under the steps of the largest, highest first.

    Requires: at least one number; ``spent`` does not fall with a step's probability or with the number of steps, as
              Renyi divergences of the sampled Gaussian do not: their moments are those of mixtures of the two
    """
    of = {count: training_of(study, privacy, count, 1).times(study.rounds) for count in counts}
    least = {of[count].count: count for count in sorted(of, reverse=True)}
    ordered = sorted(least.values())

    def bound(first: int, last: int) -> float:
        low, high = of[ordered[first]], of[ordered[last]]
        return spent(Steps(low.probability, low.noise_multiplier, high.count))

    groups = [(-bound(0, len(ordered) - 1), 0, len(ordered) - 1)]
    while True:
        negative, first, last = heapq.heappop(groups)
        if first == last:
            return ordered[first], -negative
        middle = (first + last) // 2
        for part in ((first, middle), (middle + 1, last)):
            heapq.heappush(groups, (-bound(*part), *part))


def least_spent(
    study: Study, privacy: PrivacySpec, counts: Iterable[int], spent: Callable[[Steps], float]
) -> tuple[int, float]:
    """The number of examples that spends least over all rounds, and how much. Requires: as :func:`most_spent`

    Of numbers with the same steps the largest spends least. One call for each other number of steps: ``spent`` is to be
    quick, such as the divergence at one order.
    """
    of = {count: training_of(study, privacy, count, 1).times(study.rounds) for count in counts}
    largest = {of[count].count: count for count in sorted(of)}
    return min(((count, spent(of[count])) for count in largest.values()), key=lambda one: one[1])


@dataclass(frozen=True)
class ForeseenEpsilon:
    """``epsilon`` at ``delta`` for one record, over all ``rounds`` of the study alone.

    ``examples``: it is that of a site with so many, which of all declared numbers spends most.
    """

    epsilon: float
    delta: float
    rounds: int
    examples: int
    accountant: str

    @property
    def words(self) -> str:
        """One line for a person."""
        what = f"one record at a site of {self.examples} examples"
        spent = f"epsilon {self.epsilon:.3f} at delta {self.delta:g}"
        return f"{spent} of {what} over {self.rounds} rounds ({self.accountant})"


def foreseen_epsilon(study: Study, roster: Roster, delta: float, own: Iterable[int] = ()) -> ForeseenEpsilon | None:
    """At the site that would spend most, by what the roster declares; None for a study without noise.

    ``own``: numbers of examples that are looked at too, such as what this site has, whatever it declared
    """
    if study.record_noise is None:
        return None
    counts = {*(party.samples or 1 for party in roster.sites), *own}
    examples, epsilon = most_spent(study, study.record_noise, counts, lambda steps: epsilon_of([steps], delta))
    return ForeseenEpsilon(epsilon, delta, study.rounds, examples, accountant())


def own_examples(folder: Path) -> tuple[int, ...]:
    """Return the number of training examples in a site's data folder; None where that is unknown, as of a plug-in."""
    try:
        with np.load(folder / "train.npz", allow_pickle=False) as archive:
            return (len(archive["y"]),) if len(archive["y"]) else ()
    except (OSError, KeyError, ValueError, TypeError):
        return ()
