"""Spending of this site's key from its privacy budget, in all studies (docs/protocol.md 19).

    budget/KEY/spent.json     every training with noise, and rounds that were shared before there was a count

A training is written before it begins, so before anything of it can leave; it counts from then on, whatever becomes of
the round. A file that is gone or was put back lacks rounds that the servers have receipts for, and then nothing is
contributed (client_agent/site/reconciling.py).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from client_agent.learning.private.drawn_rows import drawing_probability
from client_agent.site.budget.accounting import Steps, epsilon_of, share_used
from client_agent.site.key_folder import folder_of_key, read_remembered
from host.files import new_folder, write_durably
from protocol.errors import Clause, ConfigurationError, PolicyRefusal
from protocol.policy.site_policy import SitePolicy

RoundName = tuple[str, int]
_SPENT: Final = "spent.json"
MEMORY: Final = "budget"


def budget_memory(state_dir: Path, came_with: str) -> BudgetMemory:
    """The count of the site that came with this signing key, whichever keys it has now and whichever study asks."""
    return BudgetMemory(folder_of_key(state_dir, MEMORY, came_with))


class Training(BaseModel):
    """One training in which noise hides each record: ``steps`` gradients over ``examples`` records.

    ``batch_size`` records are expected in each. Older versions also wrote down sums in which noise of the servers hid
    a site, as ``unit`` "site"; they bound nothing about a record and count for nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    study_digest: str
    study: str
    round: int
    examples: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    steps: int = Field(ge=1)
    noise_multiplier: float = Field(gt=0)
    unit: Literal["record", "site"] = "record"

    @property
    def name(self) -> RoundName:
        """Study and round."""
        return self.study_digest, self.round

    def times(self, rounds: int) -> Steps:
        """So many rounds of it, as the accountant counts them."""
        probability = drawing_probability(self.examples, self.batch_size)
        return Steps(probability, self.noise_multiplier, self.steps * rounds)


class Spent(BaseModel):
    """The contents of the file. ``uncovered``: rounds without noise, or whose count was lost, that an operator goes on
    after.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    trainings: tuple[Training, ...] = ()
    uncovered: tuple[RoundName, ...] = ()


class BudgetMemory:
    """All studies of an agent share it, one at a time.

    Raises: ConfigurationError when the file is not what was written
    """

    def __init__(self, folder: Path) -> None:
        self._folder = new_folder(folder)
        self._lock = threading.RLock()
        self.reconciled_at_s: float | None = None
        kept = folder / _SPENT
        self._spent = read_remembered(kept, Spent, MEMORY) if kept.exists() else Spent()

    @property
    def spent(self) -> Spent:
        """Everything that counts."""
        with self._lock:
            return self._spent

    @property
    def trainings(self) -> tuple[Training, ...]:
        """The trainings that count: those under noise per record."""
        return tuple(one for one in self.spent.trainings if one.unit == "record")

    def rounds(self) -> frozenset[RoundName]:
        """All rounds that the count has a word on."""
        return frozenset({one.name for one in self.trainings} | set(self.spent.uncovered))

    def epsilon(self, delta: float, study_digest: str | None = None) -> float:
        """Return the epsilon of all studies together, or of one alone."""
        return epsilon_of([one.times(1) for one in self.trainings if study_digest in (None, one.study_digest)], delta)

    def share_used(self, policy: SitePolicy) -> float | None:
        """Return the used share of the policy's budget, 1 being all of it; None where there is none."""
        if policy.epsilon is None:
            return None
        return share_used([one.times(1) for one in self.trainings], policy.epsilon, policy.delta)

    def charge(self, training: Training, policy: SitePolicy) -> None:
        """Write down a training that begins now, if the budget holds it; each time it begins, also after a crash.

        Raises: PolicyRefusal, clause ``budget_spent``; then nothing is written
        """
        with self._lock:
            self.require_room(training, 1, policy)
            self._write(self._spent.model_copy(update={"trainings": (*self._spent.trainings, training)}))

    def require_room(self, training: Training, rounds: int, policy: SitePolicy) -> None:
        """The budget holds so many rounds of it more. Raises: PolicyRefusal, clause ``budget_spent``"""
        if policy.epsilon is None:
            return
        if training.examples * policy.delta >= 1:
            raise ConfigurationError(
                f"key 'policy.delta': {policy.delta:g} is not below 1 / {training.examples}, this site's number of "
                "examples, so it allows one whole record to be shown: take a smaller one"
            )
        steps = [one.times(1) for one in self.trainings]
        budget = policy.epsilon, policy.delta
        before, after = share_used(steps, *budget), share_used([*steps, training.times(rounds)], *budget)
        if after > 1:
            what = "this round" if rounds == 1 else f"its {rounds} rounds"
            raise PolicyRefusal(
                Clause.BUDGET_SPENT,
                f"this site's privacy budget is epsilon {policy.epsilon:g} at delta {policy.delta:g}; {before:.1%} of "
                f"it is used, and with {what} it would be {after:.1%}",
                "this site's privacy budget does not hold it",
            )

    def begin_after(self, rounds: Sequence[RoundName]) -> None:
        """An operator's word that these rounds are covered by no count: from now on they stand in nobody's way."""
        with self._lock:
            uncovered = tuple(sorted({*self._spent.uncovered, *rounds}))
            self._write(self._spent.model_copy(update={"uncovered": uncovered}))

    def _write(self, spent: Spent) -> None:
        write_durably(self._folder / _SPENT, spent.model_dump_json().encode())
        self._spent = spent
