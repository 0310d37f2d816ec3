from __future__ import annotations

import numpy as np
import pytest

from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc import product
from protocol.sharing import Side

from .dealt import correlation, ring, uniform

EDGES = ring([0, 1, 2**32, 2**63 - 1, 2**63, -1])


def run(rng, x, y, lengths):
    half_a, half_b = correlation(rng, lengths)
    from_a, from_b = product.mask(x, half_a), product.mask(y, half_b)
    share_a = product.finish(x, from_b, half_a, Side.A)
    share_b = product.finish(y, from_a, half_b, Side.B)
    return share_a + share_b


@pytest.mark.parametrize("lengths", [(1,), (6,), (1, 1, 1), (2048, *(1,) * 40), (5, 1, 300, 2)])
def test_shares_add_up_to_every_inner_product(rng, lengths):
    x, y = uniform(rng, sum(lengths)), uniform(rng, sum(lengths))
    x[: min(6, x.size)], y[: min(6, y.size)] = EDGES[: x.size], EDGES[::-1][: y.size]
    expected, at = [], 0
    for n in lengths:
        pairs = zip(x[at : at + n].tolist(), y[at : at + n].tolist(), strict=True)
        expected.append(sum(a * b for a, b in pairs) % 2**64)
        at += n
    assert run(rng, x, y, lengths).tolist() == expected


def test_the_masked_vector_is_the_difference_to_the_correlation(rng):
    half, _ = correlation(rng, (6,))
    assert product.mask(EDGES, half).tolist() == [
        (int(x) - int(a)) % 2**64 for x, a in zip(EDGES, half.vector, strict=True)
    ]


def test_operands_of_another_length_are_refused(rng):
    half, _ = correlation(rng, (4, 1))
    with pytest.raises(ProtocolViolation, match="5 elements in all"):
        product.mask(uniform(rng, 4), half)
    with pytest.raises(ProtocolViolation, match="5 elements in all"):
        product.finish(uniform(rng, 6), uniform(rng, 6), half, Side.A)


@pytest.mark.parametrize("side", Side)
def test_a_peers_vector_of_another_length_is_refused(rng, side):
    half, _ = correlation(rng, (4, 1))
    with pytest.raises(MalformedMessage, match="must have 5 elements"):
        product.finish(uniform(rng, 5), uniform(rng, 4), half, side)


def test_zero_sharings_are_the_same_for_both_sides_and_new_for_every_context():
    key = bytes(range(32))
    first = product.zero_sharing(key, "round 1", 41)
    assert np.array_equal(first, product.zero_sharing(key, b"round 1", 41))
    others = [product.zero_sharing(key, "round 2", 41), product.zero_sharing(bytes(32), "round 1", 41)]
    assert all(not np.any(first == other) for other in others)
