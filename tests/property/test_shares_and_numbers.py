"""Properties of sharing, summing, sketching and fixed point on arbitrary input (docs/protocol.md 2, 3, 5, 9)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol import release
from protocol.arithmetic import fixed_point
from protocol.arithmetic.ring import from_bytes, from_signed, to_bytes, to_signed
from protocol.mpc.sketch import sketch_shares, sketch_vector
from protocol.sharing import SeedShare, VectorShare, chunk_source, expand_share, split
from tests.chunks import reconstruct

from .drawn import EXACTLY_AGAIN, MODULUS, elements, ring, ring_vectors, seeds, study


@given(x=ring_vectors(), seed=seeds)
@EXACTLY_AGAIN
def test_reconstruct_undoes_split(x, seed):
    seed_share, vector_share = split(ring(x), seed)
    assert reconstruct(seed_share, vector_share).tolist() == x
    assert reconstruct(vector_share, seed_share).tolist() == x


@given(data=st.data(), seed=seeds)
@EXACTLY_AGAIN
def test_a_share_is_the_same_in_pieces(data, seed):
    x = ring(data.draw(ring_vectors()))
    share: SeedShare | VectorShare
    for share in split(x, seed):
        start = data.draw(st.integers(0, x.size))
        stop = data.draw(st.integers(start, x.size))
        whole = expand_share(share, 0, x.size)
        assert np.array_equal(expand_share(share, start, stop), whole[start:stop])


@given(data=st.data(), length=st.integers(1, 30), first=seeds, second=seeds)
@EXACTLY_AGAIN
def test_shares_of_a_sum_are_sums_of_shares(data, length, first, second):
    x, y = (data.draw(ring_vectors(length, length)) for _ in "xy")
    (a, b), (c, d) = split(ring(x), first), split(ring(y), second)
    left, right = (expand_share(p, 0, length) + expand_share(q, 0, length) for p, q in ((a, c), (b, d)))
    expected = [(v + w) % MODULUS for v, w in zip(x, y, strict=True)]
    assert reconstruct(VectorShare(left), VectorShare(right)).tolist() == expected


@given(data=st.data(), challenge=seeds, dimension=st.sampled_from([1, 7, 2048, 2049, 2500]), factor=elements)
@EXACTLY_AGAIN
def test_the_sketch_is_linear(data, challenge, dimension, factor):
    """S(x + c y) = S x + c S y over the ring, so sketches of shares are shares of the sketch."""
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, y = (draw.integers(0, MODULUS, dimension, dtype=np.uint64) for _ in "xy")
    c = np.uint64(factor)
    s_x, s_y, s_sum = (sketch_vector(challenge, v, study(dimension)) for v in (x, y, x + c * y))
    assert np.array_equal(s_sum, s_x + c * s_y)
    a, b = sketch_shares(challenge, [chunk_source(s) for s in split(x, challenge)], study(dimension), chunk=512)
    assert np.array_equal(a + b, s_x)


@given(
    data=st.data(),
    t_seed=seeds,
    length=st.integers(1, 20),
    sites=st.integers(1, 5),
    chunk=st.sampled_from([2, 6, 8, 64]),
)
@EXACTLY_AGAIN
def test_a_released_sum_is_the_plain_sum(data, t_seed, length, sites, chunk):
    numbers = st.lists(st.integers(-(2**50), 2**50), min_size=length, max_size=length)
    updates = [data.draw(numbers) for _ in range(sites)]
    keys = [data.draw(seeds) for _ in range(sites)]
    shares = [split(ring(x), key) for x, key in zip(updates, keys, strict=True)]
    opened: list[int] = []
    for start in range(0, length, chunk):
        stop = min(start + chunk, length)
        y_a, y_b = (release.sum_chunk([chunk_source(pair[side]) for pair in shares], start, stop) for side in (0, 1))
        output = release.combine_chunk(release.masked_sum_chunk(y_a, t_seed, start), y_b)
        opened += release.open_aggregate_chunk(output, t_seed, start, 5 * 2**50).tolist()
    assert opened == [sum(x[i] for x in updates) for i in range(length)]


@given(x=ring_vectors())
@EXACTLY_AGAIN
def test_bytes_and_signs_go_both_ways(x):
    vector = ring(x)
    assert from_bytes(to_bytes(vector), vector.size).tolist() == x
    assert from_signed(to_signed(vector)).tolist() == x
    assert [v % MODULUS for v in to_signed(vector).tolist()] == x


@given(
    values=st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=30),
    exponent=st.integers(-8, 40),
    log2_e=st.integers(12, 21),
    seed=seeds,
)
@EXACTLY_AGAIN
def test_the_encoding_error_is_below_one_unit(values, exponent, log2_e, seed):
    """|decode(encode(x)) - x| < 2^-f, in exact fractions."""
    parameters = study(len(values), fraction_bits=exponent, encoded_norm_log2=log2_e, grid=1)
    x = [v * parameters.clip_norm for v in values]
    decoded = fixed_point.decode(fixed_point.encode(np.array(x), parameters, seed), parameters)
    unit = Fraction(2) ** -exponent
    assert all(abs(Fraction(found) - Fraction(v)) < unit for found, v in zip(decoded.tolist(), x, strict=True))


@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=30), log2_norm=st.integers(-10, 10)
)
@EXACTLY_AGAIN
def test_a_clipped_update_has_at_most_the_clip_norm(values, log2_norm):
    """The relative excess in units of 2^-53: n/2 for the sum of n squares, 6 for the single roundings around it."""
    norm = 2.0**log2_norm
    clipped, was_clipped = fixed_point.clip(np.array(values, dtype=np.float32), norm)
    exact = math.sqrt(math.fsum(v * v for v in clipped.tolist()))
    assert exact <= norm * (1 + (len(values) / 2 + 6) * 2.0**-53)
    if not was_clipped:
        assert clipped.tolist() == values


@given(alpha=st.floats(0, 1), grid=st.integers(1, 2**16))
@EXACTLY_AGAIN
def test_a_weight_moves_by_at_most_half_a_grid_step(alpha, grid):
    numerator = fixed_point.quantise_weight(alpha, grid)
    assert 0 <= numerator <= grid
    assert abs(Fraction(numerator, grid) - Fraction(alpha)) <= Fraction(1, 2 * grid)
