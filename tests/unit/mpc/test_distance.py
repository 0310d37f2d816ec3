"""Sketches, distances, and what one opened number tells."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.attack.chosen_queries import opened_values
from protocol.arithmetic.ring import Ring, from_signed
from protocol.errors import MalformedMessage, ProtocolViolation
from protocol.mpc import measurement
from protocol.mpc.measurement import SiteSketch, value_count
from protocol.mpc.sketch import sketch_shares, sketch_vector
from protocol.ot.session import CorrelationHalf
from protocol.parameters import RANGE_PROJECTIONS, Needs, StudyParameters
from protocol.sharing import Side

from .dealt import measure, open_site, ring, uniform

# --- distance ---------------------------------------------------------------------------------------------------------

CHALLENGE = bytes(range(32))


@pytest.mark.parametrize("numerator", [-1, 33])
def test_a_query_for_an_impossible_weight_is_refused(numerator):
    with pytest.raises(ProtocolViolation, match=r"0\.\.32"):
        measurement.distance_query(ring([1]), numerator, 32)


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


def test_a_share_that_is_too_short_is_refused(parameters):
    with pytest.raises(MalformedMessage, match="shorter than"):
        sketch_shares(CHALLENGE, [lambda start, stop: np.zeros(3, dtype=np.uint64)], parameters)


def test_a_vector_of_another_length_is_refused(parameters):
    with pytest.raises(MalformedMessage, match="found shape"):
        sketch_vector(CHALLENGE, np.zeros(parameters.dimension + 1, dtype=np.uint64), parameters)


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
