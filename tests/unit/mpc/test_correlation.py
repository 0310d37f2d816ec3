"""Both sources of correlations, and the halves they hand out."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.arithmetic.ring import Usage, expand
from protocol.errors import ProtocolViolation
from protocol.mpc import product
from protocol.ot.session import CorrelationHalf

LENGTHS = [(4, 1, 1), (1,), (2, 3)]
SEED_A, SEED_B = bytes(range(32)), bytes(range(32, 64))


def assert_products(halves: tuple[list[CorrelationHalf], list[CorrelationHalf]]) -> None:
    for a, b in zip(*halves, strict=True):
        assert a.lengths == b.lengths
        at = 0
        for p, length in enumerate(a.lengths):
            pairs = zip(a.vector[at : at + length].tolist(), b.vector[at : at + length].tolist(), strict=True)
            assert (int(a.products[p]) + int(b.products[p])) % 2**64 == sum(x * y for x, y in pairs) % 2**64
            at += length


def test_ot_pair_gives_exact_products():
    halves = product.ot_pair(LENGTHS, SEED_A, SEED_B)
    assert_products(halves)
    assert [half.lengths for half in halves[0]] == LENGTHS
    again = product.ot_pair(LENGTHS, SEED_A, SEED_B)
    for one, other in zip(halves[0] + halves[1], again[0] + again[1], strict=True):
        np.testing.assert_array_equal(one.vector, other.vector)
        np.testing.assert_array_equal(one.products, other.products)


def test_dealer_pair_gives_exact_products():
    halves = product.dealer_pair(LENGTHS, SEED_A)
    assert_products(halves)
    assert [half.lengths for half in halves[0]] == LENGTHS
    vectors = {half.vector.tobytes() for half in halves[0] + halves[1]}
    assert len(vectors) == 2 * len(LENGTHS)


def test_dealer_halves_come_from_the_seeds_and_one_element_a_product():
    lengths = (7, 1, 1)
    corrections = product.dealer_corrections(SEED_A, SEED_B, lengths)
    assert corrections.shape == (3,)
    a, b = product.dealer_half_a(SEED_A, lengths), product.dealer_half_b(SEED_B, corrections, lengths)
    np.testing.assert_array_equal(np.concatenate([a.vector, a.products]), expand(SEED_A, Usage.DEALER_A, 12))
    np.testing.assert_array_equal(b.vector, expand(SEED_B, Usage.DEALER_B, 9))
    assert_products(([a], [b]))


def test_a_product_has_a_length():
    with pytest.raises(ProtocolViolation, match="at least one"):
        product.dealer_pair([(0,)], SEED_A)


def test_one_session_serves_many_batches():
    receiver, sender = product.open_ot_sessions(SEED_A, SEED_A, SEED_B)
    for rand in (bytes(32), bytes([1]) * 32):
        assert_products(product.ot_batch(receiver, sender, LENGTHS, rand))


@pytest.mark.parametrize(
    ("lengths", "elements", "products"), [((2,), 3, 1), ((2,), 2, 2), ((), 0, 0), ((0,), 0, 1), ((2, -1), 1, 2)]
)
def test_a_half_must_fit_its_lengths(lengths: tuple[int, ...], elements: int, products: int):
    with pytest.raises(ProtocolViolation, match="product lengths"):
        CorrelationHalf(lengths, np.zeros(elements, np.uint64), np.zeros(products, np.uint64))
