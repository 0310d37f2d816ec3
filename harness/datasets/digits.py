"""Handwritten digits (scikit-learn's 1,797 images of 8x8) over ten sites, label-skewed like MNIST's distribution B.

Site 0, the requester, gets 20 % of the fours, 60 % of the fives and 20 % of the sixes; each next site the same
shares one digit lower. So every site sees three digits, its neighbours share two of them, and far sites none: what
helps the requester and what does not is known. The requester trains on 15 % of its images, so that there is something
to win from others. A federation of n sites takes the first n in the order of HELPFUL.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from sklearn.datasets import load_digits

from harness.datasets.site_data import Federation, SiteData, cut_site, split_random

SHARES_AROUND: Final = (0.2, 0.6, 0.2)
CENTRAL_DIGIT: Final = 5
# Shift of each site's digits against the requester's, nearest first.
HELPFUL: Final = (0, 1, -1, 2, -2, 3, -3, 4, -4, 5)
REQUESTER_SHARES: Final = (0.15, 0.25, 0.60)
CONTRIBUTOR_SHARES: Final = (0.80, 0.00, 0.20)


def digits_sites(seed: int, sites: int = 5) -> Federation:
    """The federation of ``sites`` (2 to 10); ``seed`` decides who gets which image. Pixels are scaled to [0, 1]."""
    if not 2 <= sites <= len(HELPFUL):
        raise ValueError(f"the digits split into 2 to {len(HELPFUL)} sites, {sites} were asked for")
    bundle = load_digits()
    X = np.asarray(bundle.data, dtype=np.float64) / 16
    y = np.asarray(bundle.target, dtype=np.int64)
    random = split_random("digits", seed)
    owner = _owners(y, random)
    made: list[SiteData] = []
    for place, shift in enumerate(HELPFUL[:sites]):
        rows = np.flatnonzero(owner == shift % 10)
        shares = REQUESTER_SHARES if place == 0 else CONTRIBUTOR_SHARES
        centre = (CENTRAL_DIGIT - shift) % 10
        made.append(cut_site(f"site-{place}", X[rows], y[rows], shares, random, f"mostly digit {centre}"))
    digits, pixels = tuple(str(digit) for digit in range(10)), tuple(str(name) for name in bundle.feature_names)
    return Federation(f"digits, {sites} sites", (64,), digits, tuple(made), pixels)


def _owners(
    y: np.ndarray[tuple[int], np.dtype[np.int64]], random: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Shift of the site that gets each image: each digit is shuffled and cut over the three sites that see it."""
    owner = np.zeros(len(y), np.int64)
    for digit in range(10):
        rows = random.permutation(np.flatnonzero(y == digit))
        ends = np.rint(np.cumsum(SHARES_AROUND) * len(rows)).astype(np.int64)[:-1]
        for offset, piece in zip((-1, 0, 1), np.split(rows, ends), strict=True):
            owner[piece] = (CENTRAL_DIGIT + offset - digit) % 10
    return owner
