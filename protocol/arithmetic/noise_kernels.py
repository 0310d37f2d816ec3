"""The compiled draws of the discrete Gaussian (discrete_gaussian.py), imported on first use as numba takes a while.

They take words of a stream from left to right; ``tests/reference/discrete_gaussian.py`` takes the same words in slow
whole numbers and must draw the same. A place of -1 says that the words ran out, -2 that a draw left 64 bits.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

_MOST_QUOTIENT: Final = 31
"""Times sigma: further from sigma, where a draw stays with a probability below exp(-480), squares leave 64 bits."""


@njit(cache=True, nogil=True)
def fill(words, sigma, out):  # noqa: ANN001, ANN201  # pragma: no cover - compiled
    """As many draws as the words suffice for. -> (draws, words used by them); (-1, 0) where one leaves 64 bits"""
    at, filled = 0, 0
    while filled < out.size:
        value, after = _draw(words, at, sigma)
        if after == -2:
            return -1, 0
        if after < 0:
            break
        out[filled] = value
        filled, at = filled + 1, after
    return filled, at


@njit(cache=True, nogil=True)
def _draw(words, at, sigma):  # noqa: ANN001, ANN202  # pragma: no cover - compiled
    """One draw. -> (value, place of the next word); the place is -1 where words ran out, -2 beyond 64 bits"""
    while True:
        value, at = _laplace(words, at, sigma)
        if at < 0:
            return 0, at
        apart = abs(abs(value) - sigma)
        if apart > _MOST_QUOTIENT * sigma:
            kept, at = _all_of_exp_of_one(words, at, _MOST_QUOTIENT * _MOST_QUOTIENT // 2)
            if at < 0 or kept:
                return 0, at if at < 0 else -2
            continue
        kept, at = _bernoulli_exp(words, at, apart * apart, 2 * sigma * sigma)
        if at < 0:
            return 0, at
        if kept:
            return value, at


@njit(cache=True, nogil=True)
def _laplace(words, at, t):  # noqa: ANN001, ANN202  # pragma: no cover - compiled
    """A draw with a probability proportional to exp(-|x| / t)."""
    while True:
        rest, at = _below(words, at, t)
        if at < 0:
            return 0, at
        kept, at = _bernoulli_exp(words, at, rest, t)
        if at < 0:
            return 0, at
        if not kept:
            continue
        times = 0
        while True:
            kept, at = _bernoulli_exp(words, at, 1, 1)
            if at < 0:
                return 0, at
            if not kept:
                break
            times += 1
        negative, at = _below(words, at, 2)
        if at < 0:
            return 0, at
        size = rest + t * times
        if negative == 1 and size == 0:
            continue
        return (-size if negative == 1 else size), at


@njit(cache=True, nogil=True)
def _bernoulli_exp(words, at, num, den):  # noqa: ANN001, ANN202  # pragma: no cover - compiled
    """Toss a coin of probability exp(-num / den)."""
    kept, at = _all_of_exp_of_one(words, at, num // den if num > den else 0)
    if at < 0 or not kept:
        return False, at
    num = num % den if num > den else num
    k = 1
    while True:
        drawn, at = _below(words, at, den)
        if at < 0:
            return False, at
        if drawn >= num:
            return k % 2 == 1, at
        drawn, at = _below(words, at, k)
        if at < 0:
            return False, at
        if drawn != 0:
            return k % 2 == 1, at
        k += 1


@njit(cache=True, nogil=True)
def _all_of_exp_of_one(words, at, times):  # noqa: ANN001, ANN202  # pragma: no cover - compiled
    """Toss ``times`` coins of probability exp(-1); true if all fall on heads."""
    for _ in range(times):
        k = 1
        while True:
            drawn, at = _below(words, at, k)
            if at < 0:
                return False, at
            if drawn != 0:
                break
            k += 1
        if k % 2 == 0:
            return False, at
    return True, at


@njit(cache=True, nogil=True)
def _below(words, at, bound):  # noqa: ANN001, ANN202  # pragma: no cover - compiled
    """A uniform whole number below ``bound``: the top bits of a word, drawn again while they are too large."""
    if bound == 1:
        return 0, at
    bits = 0
    while (1 << bits) < bound:
        bits += 1
    while at < words.size:
        drawn = np.int64(words[at] >> np.uint64(64 - bits))
        at += 1
        if drawn < bound:
            return drawn, at
    return 0, -1
