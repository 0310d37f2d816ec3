"""Both sources of correlations, and the halves they hand out."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.errors import ProtocolViolation
from protocol.mpc import product
from protocol.ot.session import CorrelationHalf
from tests.unit.mpc.ot.exchange import errors

LENGTHS = [(4, 1, 1), (1,), (2, 3)]
SEED_A, SEED_B = bytes(range(32)), bytes(range(32, 64))


def test_ot_pair_gives_exact_products():
    halves = product.ot_pair(LENGTHS, SEED_A, SEED_B)
    for a, b in zip(*halves, strict=True):
        assert errors(a, b) == [0] * len(a.lengths)
    assert [half.lengths for half in halves[0]] == LENGTHS
    again = product.ot_pair(LENGTHS, SEED_A, SEED_B)
    for one, other in zip(halves[0] + halves[1], again[0] + again[1], strict=True):
        np.testing.assert_array_equal(one.vector, other.vector)
        np.testing.assert_array_equal(one.products, other.products)


def test_a_product_has_a_length():
    with pytest.raises(ProtocolViolation, match="at least one"):
        product.dealer_pair([(0,)], SEED_A)


@pytest.mark.parametrize(
    ("lengths", "elements", "products"), [((2,), 3, 1), ((2,), 2, 2), ((), 0, 0), ((0,), 0, 1), ((2, -1), 1, 2)]
)
def test_a_half_must_fit_its_lengths(lengths: tuple[int, ...], elements: int, products: int):
    with pytest.raises(ProtocolViolation, match="product lengths"):
        CorrelationHalf(lengths, np.zeros(elements, np.uint64), np.zeros(products, np.uint64))
