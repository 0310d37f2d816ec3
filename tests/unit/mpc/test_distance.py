from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from protocol.arithmetic.ring import to_signed
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc import measurement
from protocol.mpc.sketch import sketch_vector

from .dealt import measure, ring, uniform

CHALLENGE = bytes(range(32))


@pytest.mark.parametrize(
    ("numerator", "grid"), [(0, 32), (1, 32), (17, 32), (32, 32), (1, 3), (2, 3), (65535, 65536), (1, 1)]
)
def test_the_query_rounds_halves_up_in_integers(rng, numerator, grid):
    signed = [0, 1, -1, 16, -16, 48, 2**21, -(2**21), 2**62, -(2**63), 2**63 - 1, *rng.integers(-(2**25), 2**25, 200)]
    expected = [math.floor(Fraction(int(s) * numerator, grid) + Fraction(1, 2)) for s in signed]
    query = measurement.distance_query(ring(signed), numerator, grid)
    assert to_signed(query).tolist() == expected
    assert all(
        abs(q - Fraction(int(s) * numerator, grid)) <= Fraction(1, 2) for q, s in zip(expected, signed, strict=True)
    )


@pytest.mark.parametrize("numerator", [-1, 33])
def test_a_query_for_an_impossible_weight_is_refused(numerator):
    with pytest.raises(ProtocolViolation, match=r"0\.\.32"):
        measurement.distance_query(ring([1]), numerator, 32)


def test_the_measured_distance_is_the_exact_integers(parameters, rng):
    """Both servers' steps against Python's integers, for each weight."""
    bound = parameters.encoded_norm // 100
    for numerator in (1, 20, 32):
        x = rng.integers(-bound, bound, parameters.dimension)
        x_0 = rng.integers(-bound, bound, parameters.dimension)
        sketch = sketch_vector(CHALLENGE, ring(x), parameters)
        query = measurement.distance_query(
            sketch_vector(CHALLENGE, ring(x_0), parameters), numerator, parameters.weight_grid
        )
        a, b = measure(rng, CHALLENGE, sketch, query, parameters)
        squared = sum((s - q) ** 2 for s, q in zip(to_signed(sketch).tolist(), to_signed(query).tolist(), strict=True))
        assert (a.values + b.values).tolist() == [squared]
        opened = measurement.open_site(a, b, numerator, parameters)
        weight = Fraction(numerator, parameters.weight_grid)
        expected = math.sqrt(Fraction(squared, parameters.sketch_blocks)) / parameters.scale / float(weight)
        assert opened.in_range
        # conversion, root, two divisions: each at most 2^-53
        assert opened.distance == pytest.approx(expected, rel=2**-50, abs=0)


def test_the_distance_is_that_of_the_unweighted_updates(identity, rng):
    """Encode w g_i and g_0, measure, open: ||g_i - g_0|| up to the rounding of the two sides."""
    g_i, g_0 = rng.normal(size=(2, identity.dimension)) * 0.1
    numerator = 8
    encoded = np.rint(g_i * (numerator / 32) * identity.scale).astype(np.int64)
    query = measurement.distance_query(ring(np.rint(g_0 * identity.scale).astype(np.int64)), numerator, 32)
    opened = measurement.open_site(*measure(rng, CHALLENGE, ring(encoded), query, identity), numerator, identity)
    # every entry is off by at most 1/2 + 1/8 + 1/2 units of 2^-f, before the division by the weight 1/4
    tolerance = math.sqrt(identity.dimension) * 1.125 / identity.scale * 4
    assert opened.distance == pytest.approx(float(np.linalg.norm(g_i - g_0)), abs=tolerance, rel=0)


def test_local_steps(rng):
    x, q = uniform(rng, 9), uniform(rng, 9)
    d = measurement.difference(x, q)
    assert d.tolist() == [(int(a) - int(b)) % 2**64 for a, b in zip(x, q, strict=True)]
    square = sum(int(v) ** 2 for v in d) % 2**64
    assert measurement.square_share(d) == square
    factor = measurement.distance_factor(x, q)
    assert np.array_equal(factor.own, d)
    assert factor.share(2**64 - 1) == (square - 2) % 2**64


def test_a_query_of_another_length_is_refused(rng):
    with pytest.raises(MalformedMessage, match="as many elements"):
        measurement.difference(uniform(rng, 3), uniform(rng, 4))


def test_an_impossible_integer_is_refused(identity):
    largest = measurement.open_distance(2**62, 2**62 - 1, 32, identity)
    assert math.isclose(largest, math.sqrt(2.0**63) / identity.scale, rel_tol=2**-50)
    for a, b in ((2**62, 2**62), (0, 2**64 - 1)):
        with pytest.raises(ProtocolViolation, match="2\\^63 or more"):
            measurement.open_distance(a, b, 32, identity)


@pytest.mark.parametrize("numerator", [0, -1, 33])
def test_an_unlisted_weight_opens_no_distance(identity, numerator):
    with pytest.raises(ProtocolViolation, match=r"1\.\.32"):
        measurement.open_distance(1, 1, numerator, identity)
