"""Correlations, products, sketches, and what is opened about single sites.

What they compute is in tests/vectors and tests/property; here are refusals, signs and units.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from protocol.arithmetic.ring import Ring
from protocol.errors import MalformedMessage, MoietyError, ProtocolViolation
from protocol.mpc import measurement, product
from protocol.mpc.sketch import sketch_shares, sketch_vector
from protocol.ot.session import CorrelationHalf
from protocol.parameters import Needs, StudyParameters
from protocol.sharing import Side
from tests.unit.mpc.ot.exchange import errors

from .dealt import measure, open_site, ring, uniform

# --- correlation ------------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("lengths", "elements", "products"), [((2,), 3, 1), ((2,), 2, 2), ((), 0, 0), ((0,), 0, 1), ((2, -1), 1, 2)]
)
def test_a_half_must_fit_its_lengths(lengths: tuple[int, ...], elements: int, products: int):
    with pytest.raises(ProtocolViolation, match="product lengths"):
        CorrelationHalf(lengths, np.zeros(elements, np.uint64), np.zeros(products, np.uint64))


# --- quantity ---------------------------------------------------------------------------------------------------------

MODULUS = 2**64


def inner(x, y) -> int:
    return sum(int(a) * int(b) for a, b in zip(x, y, strict=True))


def test_a_factor_shows_nothing_in_its_repr(rng):
    assert repr(measurement.distance_factor(uniform(rng, 3), uniform(rng, 3))) == "Factor(times=2)"


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


def test_units_are_those_of_the_updates(identity):
    """1.0 times 2.0 in one coordinate, in ring units, opens as 2."""
    x, q = ring([1.0 * identity.scale]), ring([2.0 * identity.scale])
    assert measurement.open_inner_product(inner(x, q), 0, 32, identity) == 2.0


# --- distance ---------------------------------------------------------------------------------------------------------

CHALLENGE = bytes(range(32))


def test_the_distance_is_that_of_the_unweighted_updates(identity, rng):
    """Encode w g_i and g_0, measure, open: ||g_i - g_0|| up to the rounding of the two sides."""
    g_i, g_0 = rng.normal(size=(2, identity.dimension)) * 0.1
    numerator = 8
    encoded = np.rint(g_i * (numerator / 32) * identity.scale).astype(np.int64)
    query = measurement.distance_query(ring(np.rint(g_0 * identity.scale).astype(np.int64)), numerator, 32)
    opened = open_site(*measure(rng, CHALLENGE, ring(encoded), query, identity), numerator, identity)
    # every entry is off by at most 1/2 + 1/8 + 1/2 units of 2^-f, before the division by the weight 1/4
    tolerance = math.sqrt(identity.dimension) * 1.125 / identity.scale * 4
    assert opened.distance == pytest.approx(float(np.linalg.norm(g_i - g_0)), abs=tolerance, rel=0)


def test_an_impossible_integer_is_refused(identity):
    largest = measurement.open_distance(2**62, 2**62 - 1, 32, identity)
    assert math.isclose(largest, math.sqrt(2.0**63) / identity.scale, rel_tol=2**-50)
    for a, b in ((2**62, 2**62), (0, 2**64 - 1)):
        with pytest.raises(ProtocolViolation, match="2\\^63 or more"):
            measurement.open_distance(a, b, 32, identity)


# --- sketch -----------------------------------------------------------------------------------------------------------


def test_short_vectors_are_left_as_they_are(identity, rng):
    x = uniform(rng, identity.dimension)
    sketch = sketch_vector(CHALLENGE, x, identity)
    assert np.array_equal(sketch, x)
    assert not np.shares_memory(sketch, x)


def test_no_more_than_a_chunk_of_a_share_is_asked_for_and_each_only_once(blocks):
    asked = []

    def source(start, stop):
        asked.append((start, stop))
        return np.zeros(stop - start, dtype=np.uint64)

    sketch_shares(CHALLENGE, [source, source], blocks, 2000)
    assert asked == [(0, 2000)] * 2 + [(2000, 4000)] * 2 + [(4000, 5001)] * 2


def test_no_shares_no_sketches(parameters):
    assert sketch_shares(CHALLENGE, [], parameters) == []


# --- refusals ---------------------------------------------------------------------------------------------------------


def zeros(n: int) -> Ring:
    return np.zeros(n, dtype=np.uint64)


HALF = CorrelationHalf((4, 1), zeros(5), zeros(2))


@pytest.mark.parametrize("numerator", [-1, 0, 33])
def test_no_weight_outside_the_grid_is_asked_for_or_opened(identity: StudyParameters, numerator: int) -> None:
    if numerator:
        with pytest.raises(ProtocolViolation, match=r"0\.\.32"):
            measurement.distance_query(zeros(1), numerator, 32)
    for opens in (measurement.open_distance, measurement.open_inner_product):
        with pytest.raises(ProtocolViolation, match=r"1\.\.32"):
            opens(1, 1, numerator, identity)


@pytest.mark.parametrize(
    ("error", "call", "text"),
    [
        (ProtocolViolation, lambda of: product.dealer_pair([(0,)], SEED_A), "at least one"),
        (ProtocolViolation, lambda of: product.mask(zeros(4), HALF), "5 elements in all"),
        (ProtocolViolation, lambda of: product.finish(zeros(6), zeros(6), HALF, Side.A), "5 elements in all"),
        (MalformedMessage, lambda of: product.finish(zeros(5), zeros(4), HALF, Side.B), "must have 5 elements"),
        (MalformedMessage, lambda of: measurement.distance_factor(zeros(3), zeros(4)), "as many elements"),
        (MalformedMessage, lambda of: measurement.inner_product_factor(Side.A, zeros(3), zeros(4)), "as many elem"),
        (MalformedMessage, lambda of: sketch_shares(CHALLENGE, [lambda start, stop: zeros(3)], of), "shorter than"),
        (MalformedMessage, lambda of: sketch_vector(CHALLENGE, zeros(of.dimension + 1), of), "found shape"),
    ],
)
def test_other_lengths_are_refused(
    identity: StudyParameters, error: type[MoietyError], call: Callable[[StudyParameters], object], text: str
) -> None:
    with pytest.raises(error, match=text):
        call(identity)
