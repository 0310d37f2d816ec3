"""Sketches, distances, and what one opened number tells."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from harness.attack.chosen_queries import opened_values
from protocol.arithmetic.ring import Ring, Usage, expand, from_signed, to_signed
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc import measurement
from protocol.mpc.measurement import SiteSketch, value_count
from protocol.mpc.sketch import sketch_shares, sketch_vector
from protocol.ot.session import CorrelationHalf
from protocol.parameters import RANGE_PROJECTIONS, Needs, StudyParameters
from protocol.sharing import Side, chunk_source, split

from .dealt import measure, open_site, ring, uniform

# --- distance ---------------------------------------------------------------------------------------------------------

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
        opened = open_site(a, b, numerator, parameters)
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
    opened = open_site(*measure(rng, CHALLENGE, ring(encoded), query, identity), numerator, identity)
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


# --- sketch -----------------------------------------------------------------------------------------------------------


def test_the_map_is_the_documented_one(blocks, rng):
    x = uniform(rng, blocks.dimension)
    expected = [0] * 2048
    for word, value in zip(expand(CHALLENGE, Usage.SKETCH, x.size).tolist(), x.tolist(), strict=True):
        for block in range(4):
            lane = (word >> (16 * block)) & 0xFFFF
            expected[512 * block + lane % 512] += -value if lane >> 15 else value
    assert sketch_vector(CHALLENGE, x, blocks).tolist() == [value % 2**64 for value in expected]


def test_short_vectors_are_left_as_they_are(identity, rng):
    x = uniform(rng, identity.dimension)
    sketch = sketch_vector(CHALLENGE, x, identity)
    assert np.array_equal(sketch, x)
    assert not np.shares_memory(sketch, x)


def test_sketches_of_shares_are_shares_of_the_sketch(parameters, rng):
    sites = [uniform(rng, parameters.dimension) for _ in range(3)]
    shares = [split(x, rng.bytes(32)) for x in sites]
    side_a = sketch_shares(CHALLENGE, [chunk_source(a) for a, _ in shares], parameters)
    side_b = sketch_shares(CHALLENGE, [chunk_source(b) for _, b in shares], parameters)
    for x, a, b in zip(sites, side_a, side_b, strict=True):
        assert np.array_equal(a + b, sketch_vector(CHALLENGE, x, parameters))


def test_the_sketch_is_linear_over_the_ring(parameters, rng):
    x, y = uniform(rng, parameters.dimension), uniform(rng, parameters.dimension)
    factor = np.uint64(2**63 + 12345)
    left = sketch_vector(CHALLENGE, x * factor - y, parameters)
    right = sketch_vector(CHALLENGE, x, parameters) * factor - sketch_vector(CHALLENGE, y, parameters)
    assert np.array_equal(left, right)


@pytest.mark.parametrize("chunk", [1, 7, 1000, 5001, 10**6])
def test_the_chunk_length_does_not_matter(parameters, rng, chunk):
    x = uniform(rng, parameters.dimension)
    [sketch] = sketch_shares(CHALLENGE, [lambda a, b: x[a:b]], parameters, chunk)
    assert np.array_equal(sketch, sketch_vector(CHALLENGE, x, parameters))


def test_no_more_than_a_chunk_of_a_share_is_asked_for_and_each_only_once(blocks):
    asked = []

    def source(start, stop):
        asked.append((start, stop))
        return np.zeros(stop - start, dtype=np.uint64)

    sketch_shares(CHALLENGE, [source, source], blocks, 2000)
    assert asked == [(0, 2000)] * 2 + [(2000, 4000)] * 2 + [(4000, 5001)] * 2


def test_no_shares_no_sketches(parameters):
    assert sketch_shares(CHALLENGE, [], parameters) == []


def test_a_share_that_is_too_short_is_refused(parameters):
    with pytest.raises(MalformedMessage, match="shorter than"):
        sketch_shares(CHALLENGE, [lambda start, stop: np.zeros(3, dtype=np.uint64)], parameters)


def test_a_vector_of_another_length_is_refused(parameters):
    with pytest.raises(MalformedMessage, match="found shape"):
        sketch_vector(CHALLENGE, np.zeros(parameters.dimension + 1, dtype=np.uint64), parameters)


def test_another_challenge_is_another_map(blocks, rng):
    x = uniform(rng, blocks.dimension)
    assert not np.array_equal(sketch_vector(CHALLENGE, x, blocks), sketch_vector(bytes(32), x, blocks))


def test_the_squared_norm_is_estimated_without_bias_and_with_the_documented_spread(blocks, rng):
    x = rng.integers(-1000, 1000, blocks.dimension)
    norm = float(np.sum(x.astype(np.float64) ** 2))
    trials = 400
    ratios = []
    for _ in range(trials):
        sketch = to_signed(sketch_vector(rng.bytes(32), from_signed(x), blocks)).astype(np.float64)
        ratios.append(float(np.sum(sketch**2)) / blocks.sketch_blocks / norm)
    spread = math.sqrt(2 / blocks.sketch_length)
    assert abs(np.mean(ratios) - 1) < 5 * spread / math.sqrt(trials)
    # a sample deviation of n normal values has relative standard deviation 1/sqrt(2n), here 3.5 %: five of them
    assert abs(np.std(ratios) / spread - 1) < 5 / math.sqrt(2 * trials)


@pytest.mark.parametrize("length", [2**12, 2**17])
def test_longer_sketches_reach_every_bucket(length):
    wide = StudyParameters(
        dimension=4 * length, clip_norm=1.0, weight_grid=4, sketch_length=length, least_contributors=3
    )
    ones = sketch_vector(CHALLENGE, np.full(4 * length, 2**63, dtype=np.uint64), wide)
    # the top bit of a bucket is the parity of its 16 expected coordinates: close to 1/2 of the buckets are odd
    assert abs(np.count_nonzero(ones) / length - 0.5) < 5 * 0.5 / math.sqrt(length)


# --- opened numbers ---------------------------------------------------------------------------------------------------

PARAMETERS = StudyParameters(dimension=12, clip_norm=1.0, least_contributors=3)
RNG = np.random.default_rng(73)
VICTIM = RNG.integers(-(2**19), 2**19, 12)
"""An update of at most E, every coordinate in 20 bits."""
PLACES = (4, 7, 9)
DIGIT = 21


def packing() -> Ring:
    """1, 2^21 and 2^42 at three coordinates: their inner product with the victim holds all three as digits."""
    vector = np.zeros(12, dtype=np.int64)
    vector[list(PLACES)] = 1, 2**DIGIT, 2 ** (2 * DIGIT)
    return from_signed(vector)


@pytest.mark.parametrize(
    ("opens", "numbers"),
    [
        (Needs.NOTHING, 0),
        (Needs.NORMS, 1),
        (Needs.DISTANCES, 1),
        (Needs.INNER_PRODUCTS, 1),
        (Needs.PAIRS, 3),
    ],
)
def test_so_many_numbers_are_opened_about_a_site_and_no_more(opens: Needs, numbers: int) -> None:
    """The last of four agreed sites; a pair's number is about both its sites."""
    assert value_count(opens, place=3, is_requester=False) == numbers
    queries: list[Ring | None] = [None, *[None if opens in (Needs.NOTHING, Needs.PAIRS) else packing()] * 3]
    opened = opened_values(opens, [from_signed(VICTIM)] * 4, queries, PARAMETERS)
    assert len(opened[3].values) == numbers


def test_every_opened_share_is_refreshed_alone() -> None:
    """Shares of one site, of its range check and its values, are moved by different elements of the zero sharing."""
    zeros = [
        np.concatenate([opening.values, opening.range_shares])
        for opening in (
            measurement.opening_share(
                Side.A,
                operands,
                np.zeros(sum(operands.lengths), dtype=np.uint64),
                CorrelationHalf(
                    operands.lengths,
                    np.zeros(sum(operands.lengths), dtype=np.uint64),
                    np.zeros(len(operands.lengths), dtype=np.uint64),
                ),
                b"z" * 32,
                "round",
                PARAMETERS,
            )
            for operands in measurement.prepare_all(
                Side.A,
                CHALLENGE,
                [SiteSketch(f"site-{i}", np.zeros(12, dtype=np.uint64), None) for i in range(4)],
                PARAMETERS,
                opens=Needs.PAIRS,
            )
        )
    ]
    moved = np.concatenate(zeros)
    assert moved.size == 3 + 2 + 1 + 4 * RANGE_PROJECTIONS
    # With nothing shared at all, what is left is the zero sharing; 38 bits of a range share are what is kept of it.
    assert len(np.unique(moved)) == moved.size
