"""The weight that a site gives itself, and its class counts as a vector to share (docs/protocol.md 9).

A self-weighted site scales its clipped update by w in [1/grid, 1] and shares w C as one more coordinate, so nobody
else sees w and the sum can still be divided by the sum of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import numpy as np

from protocol.arithmetic.ring import Ring
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.parameters import StudyParameters

_SAMPLES_PER_NORM: Final = 4


def sample_weight(count: int, largest_count: int, grid: int) -> float:
    """The weight of a site with ``count`` training samples: count / largest_count, within [1/grid, 1].

    Source:  McMahan et al. 2017, n_k / n, up to a factor that the sum of weights takes out again
    Raises:  UnusableUpdate without samples; ConfigurationError for a largest count below 1
    """
    if count < 1:
        raise UnusableUpdate(f"this site has {count} training samples: it has nothing to contribute")
    if largest_count < 1:
        raise ConfigurationError(f"largest_count is the number of samples of weight 1, found {largest_count}")
    return _within_grid(Fraction(count, largest_count), grid)


def class_weight(counts: Sequence[int], totals: Sequence[int], grid: int) -> float:
    """The weight of a site with ``counts`` samples of each class, all sites together having ``totals``.

    1 / sum_j P_j p_ij^2, with P_j the share of class j in ``totals`` and p_ij its share at the site, divided by the
    largest value that any site could have, sum_j 1 / P_j (at p_ij proportional to 1 / P_j); not below 1/grid. A rare
    class makes that largest value large and all weights small: below 1/grid sites weigh the same.

    Source:  Cerasti et al. 2023, WFedAvg
    Raises:  UnusableUpdate when the counts are no counts of these classes; ConfigurationError when a class has no
             samples at any site
    """
    if len(counts) != len(totals) or min(counts, default=0) < 0 or sum(counts) < 1:
        raise UnusableUpdate(
            f"a site counts its samples of {len(totals)} classes, at least one in all, found {list(counts)}"
        )
    missing = [place for place, total in enumerate(totals) if total < 1]
    if missing:
        raise ConfigurationError(
            f"no site has training samples of classes {missing}; check the labels, or declare fewer classes"
        )
    own, everywhere = sum(counts), sum(totals)
    spread = Fraction(sum(total * n * n for n, total in zip(counts, totals, strict=True)), everywhere * own * own)
    largest = sum((Fraction(everywhere, total) for total in totals), Fraction(0))
    return _within_grid(1 / (spread * largest), grid)


def counts_vector(counts: Sequence[int], parameters: StudyParameters) -> Ring:
    """The site's class counts as it shares them: plain integers first, zeros behind.

    Fewer than 4 E samples: then no projection of the range check is out of range (docs/protocol.md 6).

    Shapes:   -> uint64[D], ring 2^64, no fraction bits
    Raises:   UnusableUpdate when the counts do not fit
    """
    largest = _SAMPLES_PER_NORM * parameters.encoded_norm - 1
    if len(counts) > parameters.dimension:
        raise UnusableUpdate(f"{len(counts)} class counts do not fit a vector of {parameters.dimension} coordinates")
    if min(counts, default=0) < 0 or not 1 <= sum(counts) <= largest:
        raise UnusableUpdate(
            f"a site's class counts are at least 0 and sum to 1 to {largest} samples, found {list(counts)}"
        )
    vector = np.zeros(parameters.dimension, dtype=np.uint64)
    vector[: len(counts)] = counts
    return vector


def _within_grid(weight: Fraction, grid: int) -> float:
    """Rounded to a float inside [1/grid, 1]."""
    return max(1.0 / grid, float(min(weight, Fraction(1))))
