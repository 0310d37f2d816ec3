"""Products, and what is opened about single sites."""

from __future__ import annotations

import math

import pytest

from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc import measurement, product
from protocol.parameters import Needs
from protocol.sharing import Side

from .dealt import correlation, ring, uniform

# --- product ----------------------------------------------------------------------------------------------------------


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


# --- quantity ---------------------------------------------------------------------------------------------------------

MODULUS = 2**64


def inner(x, y) -> int:
    return sum(int(a) * int(b) for a, b in zip(x, y, strict=True))


def test_a_factor_shows_nothing_in_its_repr(rng):
    assert repr(measurement.distance_factor(uniform(rng, 3), uniform(rng, 3))) == "Factor(times=2)"


def test_a_query_of_another_length_is_refused(rng):
    for side in Side:
        with pytest.raises(MalformedMessage, match="as many elements"):
            measurement.inner_product_factor(side, uniform(rng, 3), uniform(rng, 4))
    with pytest.raises(MalformedMessage, match="as many elements"):
        measurement.distance_factor(uniform(rng, 3), uniform(rng, 4))


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
