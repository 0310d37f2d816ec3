"""Find which of many numbers of examples spends most in a study with noise of records (docs/protocol.md 19).

Fewer examples are drawn more often, but take fewer steps: their batches are rounded up. Of numbers with the same steps
the least spends most; between others only the accountant knows, and a call of it takes milliseconds. So groups of
neighbours are looked at by a bound, the probability of the least under the steps of the largest, the highest first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from client_agent.site.budget.accounting import Steps
from client_agent.study.spending import training_of
from protocol.messages.control import PrivacySpec, Study


def most_spent(
    study: Study, privacy: PrivacySpec, counts: Iterable[int], spent: Callable[[Steps], float]
) -> tuple[int, float]:
    """The number of examples that spends most over all rounds, and how much; exactly.

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
