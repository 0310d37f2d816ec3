"""What was spent of a privacy budget, computed by Google's dp-accounting (docs/protocol.md 19).

Renyi differential privacy at whole orders: there the moments of the subsampled discrete Gaussian with whole shifts are
those of the continuous one, term by term, so its formula holds for the noise that is really added
(docs/adr/0028-noise-at-the-site.md). Composition adds the orders' values; epsilon is the best over all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Final

from protocol.errors import ConfigurationError

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
    """Of everything together, at ``delta``; 0 where nothing was spent. A neighbour lacks one record, or has one more.

    Source: Mironov, Talwar, Zhang 2019 (sampled Gaussian); Canonne, Kamath, Steinke 2020 (conversion), as implemented
    """
    counts: Counter[tuple[float, float]] = Counter()
    for steps in spent:
        counts[steps.probability, steps.noise_multiplier] += steps.count
    return _composed(tuple(sorted(counts.items())), delta) if counts else 0.0


@lru_cache(maxsize=64)
def _composed(counts: tuple[tuple[tuple[float, float], int], ...], delta: float) -> float:
    """Asked again before and after every round."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    total = RdpAccountant(orders=ORDERS)
    for (probability, noise), count in counts:
        total.compose(PoissonSampledDpEvent(probability, GaussianDpEvent(noise)), count)
    return float(total.get_epsilon(delta))


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
