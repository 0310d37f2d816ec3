"""Inner products from a correlation, zero sharings, distances and their opening (docs/protocol.md 7, 8)."""

from __future__ import annotations

import math
from fractions import Fraction

from tests.reference.ring import MODULUS, derive, expand, inner, signed, subtract


def segments(vector: list[int], lengths: list[int]) -> list[list[int]]:
    out, at = [], 0
    for length in lengths:
        out.append(vector[at : at + length])
        at += length
    return out


def masked(own: list[int], correlated: list[int]) -> list[int]:
    """The vector for the peer: own vector minus the random one."""
    return subtract(own, correlated)


def finish_a(own: list[int], masked_b: list[int], constants: list[int], lengths: list[int]) -> list[int]:
    """<x, y - b> + c_A per product."""
    pairs = zip(segments(own, lengths), segments(masked_b, lengths), constants, strict=True)
    return [(inner(x, y) + c) % MODULUS for x, y, c in pairs]


def finish_b(masked_a: list[int], b: list[int], constants: list[int], lengths: list[int]) -> list[int]:
    """<x - a, b> + c_B per product."""
    return finish_a(masked_a, b, constants, lengths)


def dealer_half_a(seed_a: bytes, lengths: list[int]) -> tuple[list[int], list[int]]:
    """(a, c_A): one stream, the vector first, then one constant per product."""
    stream = expand(seed_a, "DEALER_A", sum(lengths) + len(lengths))
    return stream[: sum(lengths)], stream[sum(lengths) :]


def dealer_vector_b(seed_b: bytes, lengths: list[int]) -> list[int]:
    return expand(seed_b, "DEALER_B", sum(lengths))


def dealer_corrections(seed_a: bytes, seed_b: bytes, lengths: list[int]) -> list[int]:
    """c_B = <a, b> - c_A, the one ring element per product that the dealer sends."""
    a, constants = dealer_half_a(seed_a, lengths)
    pairs = zip(segments(a, lengths), segments(dealer_vector_b(seed_b, lengths), lengths), constants, strict=True)
    return [(inner(x, y) - c) % MODULUS for x, y, c in pairs]


def zero_sharing(key: bytes, context: str, length: int) -> list[int]:
    """A adds it, B subtracts it; every context has its own key."""
    return expand(derive(key, "zero sharing " + context.encode().hex()), "ZERO_SHARING", length)


def query(sketch_of_requester: list[int], numerator: int, grid: int) -> list[int]:
    """numerator / grid times the signed sketch, rounded to the nearest integer, halves up."""
    return [math.floor(Fraction(signed(s) * numerator, grid) + Fraction(1, 2)) % MODULUS for s in sketch_of_requester]


def squared_distance_shares(d_a: list[int], d_b: list[int], product_a: int, product_b: int) -> tuple[int, int]:
    """||d_A||^2 + 2 p_A and ||d_B||^2 + 2 p_B, where p_A + p_B = <d_A, d_B>."""
    return (inner(d_a, d_a) + 2 * product_a) % MODULUS, (inner(d_b, d_b) + 2 * product_b) % MODULUS


def inner_product_shares(
    query: tuple[list[int], list[int]], sketch: tuple[list[int], list[int]], product_a: int, product_b: int
) -> tuple[int, int]:
    """<q_A, x_A> + p_A and <q_B, x_B> + p_B, where p_A + p_B = <q_A, x_B> + <x_A, q_B>."""
    return (
        (inner(query[0], sketch[0]) + product_a) % MODULUS,
        (inner(query[1], sketch[1]) + product_b) % MODULUS,
    )


def open_inner_product(a: int, b: int, numerator: int, grid: int, blocks: int, fraction_bits: int) -> float:
    """<g_i, v>, rounded once."""
    exact = Fraction(signed((a + b) % MODULUS), blocks) / Fraction(4) ** fraction_bits * Fraction(grid, numerator)
    return float(exact)


def open_distance(a: int, b: int, numerator: int, grid: int, blocks: int, fraction_bits: int) -> float:
    """||g_i - g_0|| with forty digits to spare before the last rounding."""
    square = (a + b) % MODULUS
    if square >= MODULUS // 2:
        raise ValueError("squared distances are below 2^63")
    true_square = Fraction(square, blocks) / Fraction(4) ** fraction_bits * Fraction(grid, numerator) ** 2
    spare = 2**140
    return float(Fraction(math.isqrt(math.floor(true_square * spare * spare)), spare))
