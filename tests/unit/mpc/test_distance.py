from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from protocol.arithmetic.ring import to_signed
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc import distance, measurement, quantity
from protocol.mpc.sketch import sketch_vector
from protocol.parameters import Needs

from .dealt import correlation, measure, ring, uniform

CHALLENGE = bytes(range(32))


@pytest.mark.parametrize(
    ("numerator", "grid"), [(0, 32), (1, 32), (17, 32), (32, 32), (1, 3), (2, 3), (65535, 65536), (1, 1)]
)
def test_the_query_rounds_halves_up_in_integers(rng, numerator, grid):
    signed = [0, 1, -1, 16, -16, 48, 2**21, -(2**21), 2**62, -(2**63), 2**63 - 1, *rng.integers(-(2**25), 2**25, 200)]
    expected = [math.floor(Fraction(int(s) * numerator, grid) + Fraction(1, 2)) for s in signed]
    query = distance.query(ring(signed), numerator, grid)
    assert to_signed(query).tolist() == expected
    assert all(
        abs(q - Fraction(int(s) * numerator, grid)) <= Fraction(1, 2) for q, s in zip(expected, signed, strict=True)
    )


@pytest.mark.parametrize("numerator", [-1, 33])
def test_a_query_for_an_impossible_weight_is_refused(numerator):
    with pytest.raises(ProtocolViolation, match=r"0\.\.32"):
        distance.query(ring([1]), numerator, 32)


def test_the_measured_distance_is_the_exact_integers(parameters, rng):
    """Both servers' steps against Python's integers, for each weight."""
    bound = parameters.encoded_norm // 100
    for numerator in (1, 20, 32):
        x = rng.integers(-bound, bound, parameters.dimension)
        x_0 = rng.integers(-bound, bound, parameters.dimension)
        sketch = sketch_vector(CHALLENGE, ring(x), parameters)
        query = distance.query(sketch_vector(CHALLENGE, ring(x_0), parameters), numerator, parameters.weight_grid)
        a, b = measure(rng, CHALLENGE, sketch, query, parameters)
        squared = sum((s - q) ** 2 for s, q in zip(to_signed(sketch).tolist(), to_signed(query).tolist(), strict=True))
        assert (a.values + b.values).tolist() == [squared]
        opened = measurement.open_site(a, b, numerator, parameters)
        weight = Fraction(numerator, parameters.weight_grid)
        expected = math.sqrt(Fraction(squared, parameters.sketch_blocks)) / parameters.scale / float(weight)
        assert opened.in_range
        # conversion, root, two divisions: each at most 2^-53
        assert math.isclose(opened.distance, expected, rel_tol=2**-50)


def test_the_distance_is_that_of_the_unweighted_updates(identity, rng):
    """Encode w g_i and g_0, measure, open: ||g_i - g_0|| up to the rounding of the two sides."""
    g_i, g_0 = rng.normal(size=(2, identity.dimension)) * 0.1
    numerator = 8
    encoded = np.rint(g_i * (numerator / 32) * identity.scale).astype(np.int64)
    query = distance.query(ring(np.rint(g_0 * identity.scale).astype(np.int64)), numerator, 32)
    opened = measurement.open_site(*measure(rng, CHALLENGE, ring(encoded), query, identity), numerator, identity)
    # every entry is off by at most 1/2 + 1/8 + 1/2 units of 2^-f, before the division by the weight 1/4
    tolerance = math.sqrt(identity.dimension) * 1.125 / identity.scale * 4
    assert abs(opened.distance - np.linalg.norm(g_i - g_0)) < tolerance


def test_local_steps(rng):
    x, q = uniform(rng, 9), uniform(rng, 9)
    d = distance.difference(x, q)
    assert d.tolist() == [(int(a) - int(b)) % 2**64 for a, b in zip(x, q, strict=True)]
    square = sum(int(v) ** 2 for v in d) % 2**64
    assert distance.square_share(d) == square
    factor = quantity.distance_factor(x, q)
    assert np.array_equal(factor.own, d)
    assert factor.share(2**64 - 1) == (square - 2) % 2**64


def test_a_query_of_another_length_is_refused(rng):
    with pytest.raises(MalformedMessage, match="as many elements"):
        distance.difference(uniform(rng, 3), uniform(rng, 4))


def test_an_impossible_integer_is_refused(identity):
    largest = distance.open_distance(2**62, 2**62 - 1, 32, identity)
    assert math.isclose(largest, math.sqrt(2.0**63) / identity.scale, rel_tol=2**-50)
    for a, b in ((2**62, 2**62), (0, 2**64 - 1)):
        with pytest.raises(ProtocolViolation, match="2\\^63 or more"):
            distance.open_distance(a, b, 32, identity)


@pytest.mark.parametrize("numerator", [0, -1, 33])
def test_an_unlisted_weight_opens_no_distance(identity, numerator):
    with pytest.raises(ProtocolViolation, match=r"1\.\.32"):
        distance.open_distance(1, 1, numerator, identity)


class TestMeasurement:
    def test_a_round_without_distances_opens_the_range_check_alone(self, parameters, rng):
        sketch = sketch_vector(CHALLENGE, ring(rng.integers(-9, 9, parameters.dimension)), parameters)
        a, b = measure(rng, CHALLENGE, sketch, None, parameters)
        assert measurement.open_site(a, b, 32, parameters) == measurement.OpenedSite("site-1", True, None)

    def test_a_site_out_of_range_opens_no_distance(self, parameters, rng):
        x = np.full(parameters.dimension, 2**40, dtype=np.uint64)
        sketch = sketch_vector(CHALLENGE, x, parameters)
        a, b = measure(rng, CHALLENGE, sketch, np.zeros_like(sketch), parameters)
        assert measurement.open_site(a, b, 32, parameters) == measurement.OpenedSite("site-1", False, None)

    def test_opening_shares_are_fresh_and_carry_nothing_in_repr(self, identity, rng):
        sketch = ring(range(identity.dimension))
        first, _ = measure(rng, CHALLENGE, sketch, sketch, identity)
        second, _ = measure(rng, CHALLENGE, sketch, sketch, identity)
        assert not np.any(first.range_shares == second.range_shares)
        assert first.values.size == 1
        assert first.values[0] != second.values[0]
        assert repr(first) == "OpeningShare(site='site-1')"

    def test_range_shares_stay_below_their_modulus(self, parameters, rng):
        sketch = uniform(rng, parameters.sketched_length)
        for opening in measure(rng, CHALLENGE, sketch, None, parameters):
            assert int(opening.range_shares.max()) < 2 ** (64 - parameters.range_bits)

    def test_the_refreshing_depends_on_context_and_site(self, identity, rng):
        operands = [
            measurement.prepare(measurement.Side.A, CHALLENGE, site, uniform(rng, 101) * np.uint64(0), None, identity)
            for site in ("s", "t")
        ]
        half, _ = correlation(rng, operands[0].lengths)
        message = uniform(rng, 40)

        def opened(operand, context):
            return measurement.opening_share(
                measurement.Side.A, operand, message, half, bytes(32), context, identity
            ).range_shares

        first = opened(operands[0], "round 1")
        assert np.array_equal(first, opened(operands[0], "round 1"))
        for other in (opened(operands[0], "round 2"), opened(operands[1], "round 1")):
            assert not np.any(first == other)

    def test_a_correlation_of_other_lengths_is_refused(self, identity, rng):
        operands = measurement.prepare(measurement.Side.A, CHALLENGE, "s", uniform(rng, 101), None, identity)
        assert "uint64" not in repr(operands)
        half, _ = correlation(rng, quantity.product_lengths(Needs.DISTANCES, 1, False, identity))
        with pytest.raises(ProtocolViolation, match="needed are 40 of 40"):
            measurement.masked(operands, half)
        with pytest.raises(ProtocolViolation, match="needed are 40 of 40"):
            measurement.opening_share(measurement.Side.A, operands, uniform(rng, 141), half, bytes(32), "c", identity)

    def test_the_lengths_are_the_studys(self, parameters, rng):
        x = uniform(rng, parameters.sketched_length)
        operands = measurement.prepare(measurement.Side.B, CHALLENGE, "s", x, x, parameters)
        lengths = quantity.product_lengths(Needs.DISTANCES, 1, False, parameters)
        assert lengths == (parameters.sketched_length, *[1] * 40)
        assert operands.lengths == lengths
        assert measurement.operand_vector(operands).shape == (sum(lengths),)

    def test_shares_that_do_not_belong_together_are_refused(self, identity, rng):
        sketch = ring(range(identity.dimension))
        a, b = measure(rng, CHALLENGE, sketch, sketch, identity)
        strangers = (
            measurement.OpeningShare("site-2", b.range_shares, b.values),
            measurement.OpeningShare("site-1", b.range_shares, b.values[:0]),
            measurement.OpeningShare("site-1", b.range_shares[:39], b.values),
        )
        for stranger in strangers:
            with pytest.raises(MalformedMessage):
                measurement.open_site(a, stranger, 32, identity)
