"""Vectors that a contributor can write into its encoded update (docs/protocol.md 6)."""

from __future__ import annotations

import numpy as np

from protocol.arithmetic.ring import Ring
from protocol.parameters import StudyParameters

_HALF = np.uint64(2**63)
_ROOT = np.uint64(2**32)
_HALF_OF_48 = np.uint64(2**47)


def wrap_around_entry(x: Ring, place: int = 0) -> Ring:
    """2^63 on top of one entry: its square is 0 mod 2^64, so the distance does not show it, but the model breaks."""
    hostile = x.copy()
    hostile[place] ^= _HALF  # the same as adding it
    return hostile


def half_of_the_small_ring(x: Ring, places: tuple[int, ...] = (0,)) -> Ring:
    """2^47 on top of some entries: half of a ring of 48 bits, which adds up to nothing in every second site's sum."""
    hostile = x.copy()
    hostile[list(places)] += _HALF_OF_48
    return hostile


def multiples_of_two_to_the_32(x: Ring, rand: int = 0) -> Ring:
    """Random odd multiples of 2^32 on top of every entry: the squares vanish mod 2^64, the products nearly so."""
    factors = np.random.default_rng(rand).integers(0, 2**31, x.size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return x + factors * _ROOT


def scaled_update(x: Ring, factor: int) -> Ring:
    """The update times an integer, negative ones included: boosting, or pulling the model away."""
    return x * np.uint64(factor % 2**64)


def entry_near_the_range_bound(parameters: StudyParameters, sign: int = 1, place: int = 0) -> Ring:
    """One entry just inside what every projection lets pass, nothing else: the largest lie the range check misses."""
    hostile = np.zeros(parameters.dimension, dtype=np.uint64)
    hostile[place] = np.uint64((sign * (2 ** (parameters.range_bits - 1) - 1)) % 2**64)
    return hostile
