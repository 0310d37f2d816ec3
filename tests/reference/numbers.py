"""Clipping, weighting and stochastic rounding with exact fractions (docs/protocol.md 2)."""

from __future__ import annotations

import math
from fractions import Fraction

from tests.reference.ring import MODULUS, expand, signed


def uniform_draws(seed: bytes, length: int, start: int = 0) -> list[Fraction]:
    """u in [0, 1) with 53 bits: the upper bits of one stream word each."""
    return [Fraction(word >> 11, 2**53) for word in expand(seed, "ROUNDING", length, start)]


def encode(values: list[float], fraction_bits: int, draws: list[Fraction]) -> list[int]:
    """floor(x * 2^f), plus one where the draw is below the fraction; without any floating-point step."""
    out = []
    for x, u in zip(values, draws, strict=True):
        exact = Fraction(x) * Fraction(2) ** fraction_bits
        whole = math.floor(exact)
        out.append((whole + (u < exact - whole)) % MODULUS)
    return out


def decode(ring: list[int], fraction_bits: int) -> list[float]:
    return [float(signed(x) / Fraction(2) ** fraction_bits) for x in ring]


def exceeds_norm(values: list[float], norm: float) -> bool:
    """Exactly: is the L2 norm above the clip norm."""
    return sum(Fraction(x) ** 2 for x in values) > Fraction(norm) ** 2


def clipped_and_weighted(values: list[float], norm: float, weight: Fraction) -> list[Fraction]:
    """min(1, norm / ||x||) * weight * x, the root to 2^-200 of its size."""
    exact = [Fraction(x) for x in values]
    if not exceeds_norm(values, norm):
        return [weight * x for x in exact]
    ratio = Fraction(norm) ** 2 / sum(x**2 for x in exact)
    spare = 2**200 * math.ceil(1 / ratio)
    factor = Fraction(math.isqrt(math.floor(ratio * spare**2)), spare)
    return [factor * weight * x for x in exact]


def nearest_grid_point(alpha: float, grid: int) -> int:
    """Numerator of the nearest multiple of 1/grid, ties to the even numerator."""
    if not 0 <= alpha <= 1:
        raise ValueError("a weight lies in [0, 1]")
    return round(Fraction(alpha) * grid)
