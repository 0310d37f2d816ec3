"""How much a distance or a weight tells about a site's classes: what a guesser learns from federations that it knows.

The guesser sees one number of a site (its mean distance from the requester over the requester's norm, or its last
weight) and guesses how far its class shares are from the requester's. It learns a line from other seeds' federations,
of which it knows everything, and is judged on those it has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from harness.adversaries.inferring.lines import InferenceLine


@dataclass(frozen=True)
class Guessed:
    """``explained``: the part of the variance of what is guessed that the guesses explain (0: no better than the mean,
    1: all; below 0: worse than the mean). ``ranked``: Spearman's correlation over all sites.
    """

    sites: int
    explained: float
    ranked: float


def guessed(lines: Sequence[InferenceLine], number: str) -> Guessed | None:
    """From ``distance`` or ``weight``; every seed is guessed from the others. None where there is nothing to see."""
    seen = [line for line in lines if getattr(line, number) is not None]
    seeds = sorted({line.seed for line in seen})
    values = np.array([getattr(line, number) for line in seen])
    if len(seeds) < 2 or np.ptp(values) == 0:
        return None
    truth, of = np.array([line.apart for line in seen]), np.array([line.seed for line in seen])
    guesses = np.concatenate([_line_of(values[of != s], truth[of != s], values[of == s]) for s in seeds])
    true = np.concatenate([truth[of == s] for s in seeds])
    left = float(np.sum((true - guesses) ** 2) / np.sum((true - true.mean()) ** 2))
    return Guessed(len(seen), 1 - left, float(spearmanr(values, truth).statistic))


def _line_of(x: NDArray[np.float64], y: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares through (x, y), read at ``at``; the mean where all x are one number."""
    if np.ptp(x) == 0:
        return np.full(at.size, y.mean())
    return np.asarray(np.polyval(np.polyfit(x, y, 1), at))
