from __future__ import annotations

import math

import numpy as np
import pytest

from protocol.arithmetic.kernels import NUMBA, NUMPY
from protocol.arithmetic.ring import Usage, expand, from_signed, to_signed
from protocol.errors import MalformedMessage
from protocol.mpc.sketch import sketch_shares, sketch_vector
from protocol.parameters import StudyParameters
from protocol.sharing import chunk_source, split

from .dealt import uniform

CHALLENGE = bytes(range(32))


def test_the_map_is_the_documented_one(blocks, kernels, rng):
    x = uniform(rng, blocks.dimension)
    expected = [0] * 2048
    for word, value in zip(expand(CHALLENGE, Usage.SKETCH, x.size).tolist(), x.tolist(), strict=True):
        for block in range(4):
            lane = (word >> (16 * block)) & 0xFFFF
            expected[512 * block + lane % 512] += -value if lane >> 15 else value
    assert sketch_vector(CHALLENGE, x, blocks, kernels).tolist() == [value % 2**64 for value in expected]


def test_short_vectors_are_left_as_they_are(identity, kernels, rng):
    x = uniform(rng, identity.dimension)
    sketch = sketch_vector(CHALLENGE, x, identity, kernels)
    assert np.array_equal(sketch, x)
    assert not np.shares_memory(sketch, x)


def test_sketches_of_shares_are_shares_of_the_sketch(parameters, kernels, rng):
    sites = [uniform(rng, parameters.dimension) for _ in range(3)]
    shares = [split(x, rng.bytes(32)) for x in sites]
    side_a = sketch_shares(CHALLENGE, [chunk_source(a) for a, _ in shares], parameters, kernels)
    side_b = sketch_shares(CHALLENGE, [chunk_source(b) for _, b in shares], parameters, kernels)
    for x, a, b in zip(sites, side_a, side_b, strict=True):
        assert np.array_equal(a + b, sketch_vector(CHALLENGE, x, parameters, kernels))


def test_the_sketch_is_linear_over_the_ring(parameters, rng):
    x, y = uniform(rng, parameters.dimension), uniform(rng, parameters.dimension)
    factor = np.uint64(2**63 + 12345)
    left = sketch_vector(CHALLENGE, x * factor - y, parameters)
    right = sketch_vector(CHALLENGE, x, parameters) * factor - sketch_vector(CHALLENGE, y, parameters)
    assert np.array_equal(left, right)


@pytest.mark.parametrize("chunk", [1, 7, 1000, 5001, 10**6])
def test_the_chunk_length_does_not_matter(parameters, rng, chunk):
    x = uniform(rng, parameters.dimension)
    [sketch] = sketch_shares(CHALLENGE, [lambda a, b: x[a:b]], parameters, NUMPY, chunk)
    assert np.array_equal(sketch, sketch_vector(CHALLENGE, x, parameters))


def test_no_more_than_a_chunk_of_a_share_is_asked_for_and_each_only_once(blocks):
    asked = []

    def source(start, stop):
        asked.append((start, stop))
        return np.zeros(stop - start, dtype=np.uint64)

    sketch_shares(CHALLENGE, [source, source], blocks, NUMPY, 2000)
    assert asked == [(0, 2000)] * 2 + [(2000, 4000)] * 2 + [(4000, 5001)] * 2


def test_no_shares_no_sketches(parameters):
    assert sketch_shares(CHALLENGE, [], parameters, NUMPY) == []


def test_a_share_that_is_too_short_is_refused(parameters):
    with pytest.raises(MalformedMessage, match="shorter than"):
        sketch_shares(CHALLENGE, [lambda start, stop: np.zeros(3, dtype=np.uint64)], parameters, NUMPY)


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
        sketch = to_signed(sketch_vector(rng.bytes(32), from_signed(x), blocks, NUMBA)).astype(np.float64)
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
