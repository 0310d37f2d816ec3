"""What is opened about single sites, as factors of products (docs/protocol.md 8)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc import measurement
from protocol.parameters import Needs
from protocol.sharing import Side

from .dealt import ring, share, uniform

MODULUS = 2**64


def inner(x, y) -> int:
    return sum(int(a) * int(b) for a, b in zip(x, y, strict=True))


def added(factor_a: measurement.Factor, factor_b: measurement.Factor, product_a: int) -> int:
    """Both shares of the quantity, from any split of the product of the two factors."""
    product_b = (inner(factor_a.own, factor_b.own) - product_a) % MODULUS
    return (factor_a.share(product_a) + factor_b.share(product_b)) % MODULUS


@pytest.mark.parametrize("product_a", [0, 1, 2**63, 2**64 - 1])
def test_shares_add_up_to_the_quantity_however_the_product_is_split(rng, product_a):
    """On any ring elements, mod 2^64; the range check is what makes the numbers true integers."""
    x, y = uniform(rng, 9), uniform(rng, 9)
    (x_a, x_b), (y_a, y_b) = share(rng, x), share(rng, y)
    squared = added(measurement.distance_factor(x_a, y_a), measurement.distance_factor(x_b, y_b), product_a)
    assert squared == sum((int(a) - int(b)) ** 2 for a, b in zip(x, y, strict=True)) % MODULUS
    both = added(
        measurement.inner_product_factor(Side.A, x_a, y_a),
        measurement.inner_product_factor(Side.B, x_b, y_b),
        product_a,
    )
    assert both == inner(x, y) % MODULUS


def test_an_inner_product_pairs_each_sides_query_with_the_others_sketch(rng):
    x, q = uniform(rng, 5), uniform(rng, 5)
    at_a, at_b = (measurement.inner_product_factor(side, x, q) for side in Side)
    assert at_a.own.tolist() == [*q.tolist(), *x.tolist()]
    assert at_b.own.tolist() == [*x.tolist(), *q.tolist()]
    assert at_a.local == at_b.local == inner(q, x) % MODULUS


def test_a_factor_shows_nothing_in_its_repr(rng):
    assert repr(measurement.distance_factor(uniform(rng, 3), uniform(rng, 3))) == "Factor(times=2)"


def test_a_query_of_another_length_is_refused(rng):
    for side in Side:
        with pytest.raises(MalformedMessage, match="as many elements"):
            measurement.inner_product_factor(side, uniform(rng, 3), uniform(rng, 4))
    with pytest.raises(MalformedMessage, match="as many elements"):
        measurement.distance_factor(uniform(rng, 3), uniform(rng, 4))


@pytest.mark.parametrize("side", list(Side))
def test_each_need_has_its_factors(rng, side):
    x, q, earlier = uniform(rng, 4), uniform(rng, 4), [uniform(rng, 4) for _ in range(3)]

    def own(opens: Needs, query: np.ndarray | None) -> list[list[int]]:
        return [factor.own.tolist() for factor in measurement.factors(side, opens, x, query, earlier)]

    assert own(Needs.NOTHING, None) == []
    assert own(Needs.PAIRS, None) == [(other - x).tolist() for other in earlier]
    assert own(Needs.DISTANCES, q) == own(Needs.NORMS, q) == [(x - q).tolist()]
    assert own(Needs.NORMS, q * np.uint64(0)) == [x.tolist()]
    assert own(Needs.INNER_PRODUCTS, q) == [measurement.inner_product_factor(side, x, q).own.tolist()]
    for opens in (Needs.DISTANCES, Needs.NORMS, Needs.INNER_PRODUCTS):
        assert own(opens, None) == []


def test_pairs_take_half_as_many_products_as_the_matrix_of_all_entries(parameters):
    """n (n - 1) / 2 against n^2."""
    n = 10
    counts = [measurement.value_count(Needs.PAIRS, place, place == 0) for place in range(n)]
    assert sum(counts) == n * (n - 1) // 2
    lengths = [measurement.product_lengths(Needs.PAIRS, place, place == 0, parameters) for place in range(n)]
    assert [len(one) - 40 for one in lengths] == counts
    assert {length for one in lengths for length in one} == {parameters.sketched_length, 1}


def test_an_inner_products_vector_is_twice_as_long(parameters):
    lengths = measurement.product_lengths(Needs.INNER_PRODUCTS, 3, False, parameters)
    assert lengths == (2 * parameters.sketched_length, *[1] * 40)
    assert measurement.product_lengths(Needs.INNER_PRODUCTS, 3, True, parameters) == (1,) * 40


@pytest.mark.parametrize("opened", [0, 1, -1, 2**62, -(2**62), 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("numerator", [1, 13, 32])
def test_an_inner_product_has_a_sign_and_no_weight(identity, blocks, opened, numerator):
    for parameters in (identity, blocks):
        share_a, share_b = (opened - 2**61) % MODULUS, 2**61
        found = measurement.open_inner_product(share_a, share_b, numerator, parameters)
        expected = opened / parameters.sketch_blocks / parameters.scale**2 * (32 / numerator)
        # conversion and division, each at most 2^-53, here and there; the scale and the blocks are powers of two
        assert math.isclose(found, expected, rel_tol=2**-51, abs_tol=0)
        assert math.copysign(1, found) == (-1 if opened < 0 else 1)


@pytest.mark.parametrize("numerator", [0, -1, 33])
def test_an_unlisted_weight_opens_no_inner_product(identity, numerator):
    with pytest.raises(ProtocolViolation, match=r"1\.\.32"):
        measurement.open_inner_product(1, 1, numerator, identity)


def test_units_are_those_of_the_updates(identity):
    """1.0 times 2.0 in one coordinate, in ring units, opens as 2."""
    x, q = ring([1.0 * identity.scale]), ring([2.0 * identity.scale])
    assert measurement.open_inner_product(inner(x, q), 0, 32, identity) == 2.0
