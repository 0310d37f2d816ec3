"""Spending of a privacy budget, computed by Google's dp-accounting (docs/protocol.md 19).

Renyi differential privacy at whole orders: there the moments of the subsampled discrete Gaussian with whole shifts are
those of the continuous one, term by term, so its formula holds for the noise that is really added
(docs/adr/0028-noise-at-the-site.md). Composition adds the orders' values; epsilon is the best over all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from protocol.errors import ConfigurationError

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
