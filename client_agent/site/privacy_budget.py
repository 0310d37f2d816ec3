"""A site's privacy budget: what its trainings have spent in all studies (docs/protocol.md 19).

budget/KEY/spent.json     every training with noise, and rounds that were shared before there was a count

A training is written before it begins, and counts from then on, whatever becomes of the round. A file that is gone or
was put back lacks rounds that the servers have receipts for, and then nothing is contributed (site/context.py).

Google's dp-accounting computes: Renyi differential privacy at whole orders, where the moments of the subsampled
discrete Gaussian with whole shifts are those of the continuous one, term by term (docs/adr/0028-noise-at-the-site.md).
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from client_agent.learning.sampling import drawing_probability
from client_agent.site.identity import folder_of_key, read_remembered
from host.files import new_folder, write_durably
from host.frozen import Frozen
from protocol.errors import Clause, ConfigurationError, PolicyRefusal
from protocol.policy.site_policy import SitePolicy

if TYPE_CHECKING:
    from dp_accounting.rdp import RdpAccountant


ORDERS: Final = (*range(2, 65), 80, 96, 128, 192, 256)
_DIGITS: Final = 1e-3


@dataclass(frozen=True)
class Steps:
    """So many noised gradients, each of records drawn with ``probability``, under one noise multiplier."""

    probability: float
    noise_multiplier: float
    count: int


def accountant() -> str:
    """The accountant by name and version, as cards and pages show it."""
    return (
        f"dp-accounting {version('dp-accounting')}, RDP at {len(ORDERS)} whole orders from {ORDERS[0]} to {ORDERS[-1]}"
    )


def epsilon_of(spent: Iterable[Steps], delta: float) -> float:
    """Return the epsilon of everything together, at ``delta``; 0 where nothing was spent. A neighbour lacks one record,
    or has one more.

    Source: Mironov, Talwar, Zhang 2019 (sampled Gaussian); Canonne, Kamath, Steinke 2020 (conversion), as implemented
    """
    counts = _counted(spent)
    return float(_composed(counts, ORDERS).get_epsilon(delta)) if counts else 0.0


def share_used(spent: Iterable[Steps], epsilon: float, delta: float) -> float:
    """Return the used share of a budget, 1 being all of it: by the divergence at one order that the budget alone fixes.

    Whoever asks for studies sees earlier models, so what comes next may depend on them. Stopping before a sum of Renyi
    divergences at a fixed order exceeds a bound keeps that bound even then; taking the best order of a sum that was
    chosen so need not.

    Source: Feldman, Zrnic 2021, "Individual privacy accounting via a Renyi filter": its filter, of no individuals
    """
    counts = _counted(spent)
    if not counts:
        return 0.0
    order = filter_order(epsilon, delta)
    (divergence,) = _composed(counts, (order,)).rdp
    return float(divergence) / _allowed(order, epsilon, delta)


def filter_order(epsilon: float, delta: float) -> int:
    """The order that leaves the Gaussian mechanism, whose divergence is proportional to it, the most steps.

    Raises: ConfigurationError, where the budget is too small for any order
    """
    order: int = max(ORDERS, key=lambda one: _allowed(one, epsilon, delta) / one)
    if _allowed(order, epsilon, delta) <= 0:
        raise ConfigurationError(f"a budget of epsilon {epsilon:g} at delta {delta:g} allows nothing: take larger ones")
    return order


def _allowed(order: int, epsilon: float, delta: float) -> float:
    """The divergence at an order that is (epsilon, delta): Canonne, Kamath, Steinke 2020, proposition 12."""
    return epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)


_Counts = Mapping[tuple[float, float], int]


def _counted(spent: Iterable[Steps]) -> _Counts:
    counts: Counter[tuple[float, float]] = Counter()
    for steps in spent:
        counts[steps.probability, steps.noise_multiplier] += steps.count
    return counts


def _composed(counts: _Counts, orders: tuple[int, ...]) -> RdpAccountant:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    total = RdpAccountant(orders=orders)
    for (probability, noise), count in sorted(counts.items()):
        total.compose(PoissonSampledDpEvent(probability, GaussianDpEvent(noise)), count)
    return total


def noise_for(epsilon: float, delta: float, probability: float, count: int, most: float) -> float:
    """The smallest noise multiplier, to three digits, under which so many steps spend no more than ``epsilon``.

    Raises: ConfigurationError, where ``most`` does not suffice
    """
    low, high = 0.0, most
    if epsilon_of([Steps(probability, high, count)], delta) > epsilon:
        raise ConfigurationError(f"epsilon {epsilon:g} takes more noise than {most:g} here: fewer rounds, more records")
    while high - low > _DIGITS * high:
        middle = (low + high) / 2
        if middle > 0 and epsilon_of([Steps(probability, middle, count)], delta) <= epsilon:
            high = middle
        else:
            low = middle
    return high


RoundName = tuple[str, int]
_SPENT: Final = "spent.json"
MEMORY: Final = "budget"


def budget_memory(state_dir: Path, came_with: str) -> BudgetMemory:
    """The count of the site that came with this signing key, whichever keys it has now and whichever study asks."""
    return BudgetMemory(folder_of_key(state_dir, MEMORY, came_with))


class Training(Frozen):
    """One training in which noise hides each record: ``steps`` gradients over ``examples`` records.

    ``batch_size`` records are expected in each. Older versions also wrote down sums in which noise of the servers hid
    a site, as ``unit`` "site"; they bound nothing about a record and count for nothing.
    """

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
        return self.study_digest, self.round

    def times(self, rounds: int) -> Steps:
        """So many rounds of it, as the accountant counts them."""
        probability = drawing_probability(self.examples, self.batch_size)
        return Steps(probability, self.noise_multiplier, self.steps * rounds)


class Spent(Frozen):
    """The file's contents. ``uncovered``: rounds without noise or without their count, which an operator accepted."""

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
        with self._lock:
            return self._spent

    @property
    def trainings(self) -> tuple[Training, ...]:
        """The trainings that count: those under noise per record."""
        return tuple(one for one in self.spent.trainings if one.unit == "record")

    def rounds(self) -> frozenset[RoundName]:
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


class StudySpent(Frozen):
    """One study's own spending; together they spend less than the sum."""

    study: str
    study_digest: str
    trainings: int
    epsilon: float


class BudgetReport(Frozen):
    """``epsilon`` is the site's budget, ``used`` how much of it is used (1: all), both None where it has none.

    ``spent`` is epsilon of all studies together, at ``delta``.
    """

    epsilon: float | None
    delta: float
    spent: float
    used: float | None
    accountant: str
    studies: tuple[StudySpent, ...]
    uncovered_rounds: int


def budget_report(budget: BudgetMemory, policy: SitePolicy) -> BudgetReport:
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
