"""The range check of docs/protocol.md 6: honest sites pass, wrap-around is caught, and what happens without it."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.arithmetic import fixed_point
from protocol.arithmetic.ring import Usage, expand, expand_bytes, to_signed
from protocol.errors import AggregateOutOfBounds, MalformedMessage
from protocol.mpc import measurement, product
from protocol.mpc.measurement import distance_factor
from protocol.mpc.sketch import (
    cut,
    passed_range_check,
    projections,
    range_check_shares,
    range_operand,
    sketch_shares,
    sketch_vector,
    top_bits,
)
from protocol.release import coordinate_bound, open_aggregate_chunk, sum_chunk
from protocol.sharing import Side
from tests.chunks import chunks_of

from .dealt import correlation, measure, open_site, ring, share, uniform

CHALLENGE = bytes(range(32))


def honest(rng, parameters, norm=1.0):
    """A random update of ``norm`` times the study's norm, encoded, as Python's integers."""
    x = rng.normal(size=parameters.dimension)
    return np.rint(x / np.linalg.norm(x) * parameters.encoded_norm * norm).astype(np.int64)


def passes(rng, x, parameters, challenge=CHALLENGE):
    sketch = sketch_vector(challenge, ring(x), parameters)
    return open_site(*measure(rng, challenge, sketch, None, parameters), 32, parameters).in_range


def test_projections_follow_the_documented_bits(parameters):
    rows = projections(CHALLENGE, parameters)
    entries = 40 * parameters.sketched_length
    assert rows.shape == (40, parameters.sketched_length)
    raw = expand_bytes(CHALLENGE, Usage.PROJECTIONS, entries // 4)
    table = {0: 0, 1: 0, 2: 1, 3: -1}
    assert rows.ravel().tolist() == [table[(raw[j // 4] >> (2 * (j % 4))) & 3] for j in range(entries)]


def test_shares_of_m_add_up_to_w_times_w_minus_one(parameters, rng):
    """Element by element against Python's integers, on arbitrary values of a and b."""
    h, modulus = parameters.range_bits, 2 ** (64 - parameters.range_bits)
    a, b = uniform(rng, 500), uniform(rng, 500)
    a[:4], b[:4] = ring([0, 2**63, -1, 1]), ring([0, 2**63, 1, -1])
    u, v = top_bits(Side.A, a, parameters), top_bits(Side.B, b, parameters)
    assert u.tolist() == [((int(x) + 2 ** (h - 1)) % 2**64) >> h for x in a]
    assert v.tolist() == [(-int(y) % 2**64) >> h for y in b]
    first, second = share(rng, u * v)
    total = range_check_shares(Side.A, u, first, parameters) + range_check_shares(Side.B, v, second, parameters)
    w = [(int(x) - int(y)) % modulus for x, y in zip(u, v, strict=True)]
    assert cut(total, parameters).tolist() == [t * (t - 1) % modulus for t in w]


def test_the_range_is_where_the_documentation_says(parameters, rng):
    """|y| <= 2^(h-1) - 1 always passes, whatever the shares; beyond 2^(h+1) never."""
    h = parameters.range_bits
    inside = ring([0, 1, -1, 2 ** (h - 1) - 1, -(2 ** (h - 1))] * 200)
    outside = ring([2 ** (h + 1), -(2 ** (h + 1)), 2**40, 2**63, 2**62, -(2**63) + 1] * 200)
    for y, expected in ((inside, True), (outside, False)):
        a, b = share(rng, y)
        u, v = top_bits(Side.A, a, parameters), top_bits(Side.B, b, parameters)
        first, second = share(rng, u * v)
        m = range_check_shares(Side.A, u, first, parameters) + range_check_shares(Side.B, v, second, parameters)
        assert [passed_range_check(m[i : i + 1], parameters) for i in range(y.size)] == [expected] * y.size


def test_ten_thousand_honest_updates_pass(parameters, rng):
    """Half of them dense, half with everything in one coordinate, all at the full norm, over ten challenges."""
    batch = 1000
    for _ in range(10):
        challenge = rng.bytes(32)
        dense = rng.normal(size=(batch // 2, parameters.dimension))
        dense *= parameters.encoded_norm / np.linalg.norm(dense, axis=1, keepdims=True)
        x = np.zeros((batch, parameters.dimension), dtype=np.int64)
        x[::2] = np.rint(dense)
        x[np.arange(1, batch, 2), rng.integers(0, parameters.dimension, batch // 2)] = parameters.encoded_norm
        words = x.view(np.uint64)
        sketches = np.array(sketch_shares(challenge, [chunks_of(row) for row in words], parameters)).view(np.int64)
        # entries below 2^23 and at most 2048 of them: float64 sums are exact integers
        rows = projections(challenge, parameters).astype(np.float64)
        y = np.rint(sketches.astype(np.float64) @ rows.T).astype(np.int64).view(np.uint64)
        a = rng.integers(0, 2**64, y.shape, dtype=np.uint64)
        u, v = top_bits(Side.A, a, parameters), top_bits(Side.B, y - a, parameters)
        first = rng.integers(0, 2**64, y.shape, dtype=np.uint64)
        m = range_check_shares(Side.A, u, first, parameters) + range_check_shares(Side.B, v, u * v - first, parameters)
        assert passed_range_check(m, parameters)


def test_honest_updates_pass_through_both_servers(parameters, rng):
    for norm in (0.0, 0.01, 1.0):
        assert passes(rng, honest(rng, parameters, norm), parameters)


@pytest.mark.parametrize("value", [2**63, 2**40, -(2**40), 2**32, -(2**32), 3 * 2**32, 2**62])
@pytest.mark.parametrize("entries", [1, 2, None], ids=["one", "two", "all"])
def test_wrap_around_is_caught(parameters, rng, value, entries):
    x = [int(v) for v in honest(rng, parameters)]
    for i in rng.permutation(parameters.dimension)[:entries]:
        x[i] += value
    assert not passes(rng, x, parameters)


@pytest.mark.parametrize("value", [2**63, 2**40, 2**32])
def test_multiples_spread_over_the_vector_are_caught(parameters, rng, value):
    x = [int(v) * value for v in rng.integers(-100, 100, parameters.dimension)]
    assert not passes(rng, x, parameters)


@pytest.mark.parametrize("times", [30, 1000])
def test_updates_far_too_long_are_caught(parameters, rng, times):
    for _ in range(5):
        assert not passes(rng, honest(rng, parameters, times), parameters, challenge=rng.bytes(32))


def test_it_is_no_norm_bound(parameters, rng):
    """Twice the norm passes (5.6 standard deviations): the requester sees that from the distance."""
    assert passes(rng, honest(rng, parameters, 2.0), parameters)


def test_without_the_check_a_wrapped_update_looks_honest_and_wrecks_the_sum(identity, rng):
    """An entry moved by 2^63 leaves the squared distance as it was, mod 2^64; the sum is off by 2^63 units."""
    g_0 = honest(rng, identity, 0.5)
    good = honest(rng, identity, 0.5)
    bad = ring(good)
    bad[7] += np.uint64(2**63)
    query = measurement.distance_query(ring(g_0), 32, 32)

    def distance_unchecked(x):
        d_a, d_b = (distance_factor(x_s, q_s) for x_s, q_s in zip(share(rng, x), share(rng, query), strict=True))
        half_a, half_b = correlation(rng, (identity.dimension,))
        from_a, from_b = product.mask(d_a.own, half_a), product.mask(d_b.own, half_b)
        a = d_a.share(int(product.finish(d_a.own, from_b, half_a, Side.A)[0]))
        b = d_b.share(int(product.finish(d_b.own, from_a, half_b, Side.B)[0]))
        return measurement.open_distance(a, b, 32, identity)

    assert distance_unchecked(bad) == distance_unchecked(ring(good))

    sites = [ring(g_0), ring(honest(rng, identity)), bad]
    aggregate = sum_chunk([chunks_of(x) for x in sites], 0, identity.dimension)
    wrecked = fixed_point.decode(aggregate, identity)[7]
    assert abs(wrecked) > 2.0**62 / identity.scale
    assert abs(int(to_signed(aggregate)[7])) > coordinate_bound(identity, 3 * 32, 3, measured=True)
    # what is left of the attack then is a round lost: the agents' own bound stops it
    seed = bytes(32)
    chunk = aggregate - expand(seed, Usage.OUTPUT_MASK, aggregate.size)
    with pytest.raises(AggregateOutOfBounds):
        open_aggregate_chunk(chunk, seed, 0, coordinate_bound(identity, 3 * 32, 3, measured=True))

    # and with the check on, the site is left out
    assert passes(rng, good, identity)
    assert not passes(rng, bad, identity)


def test_without_the_check_multiples_of_two_to_the_32_look_like_the_requesters_own_update(blocks, rng):
    """Their squares vanish mod 2^64: with the same update as the requester, the distance opens as zero."""
    g_0 = ring(honest(rng, blocks))
    bad = g_0 + ring(np.full(blocks.dimension, 2**32))
    d = sketch_vector(CHALLENGE, bad, blocks) - sketch_vector(CHALLENGE, g_0, blocks)
    assert np.any(d)
    assert measurement.square_share(d) == 0
    assert not passes(rng, bad, blocks)


def test_all_sites_are_prepared_as_each_alone(parameters, rng):
    length = parameters.sketched_length
    for side in Side:
        sketches = [
            measurement.SiteSketch(str(i), uniform(rng, length), uniform(rng, length) if i % 2 else None)
            for i in range(5)
        ]
        together = measurement.prepare_all(side, CHALLENGE, sketches, parameters)
        for given, found in zip(sketches, together, strict=True):
            (alone,) = measurement.prepare_all(side, CHALLENGE, [given], parameters)
            assert found.site == given.site
            assert found.lengths == alone.lengths
            assert np.array_equal(measurement.operand_vector(found), measurement.operand_vector(alone))
    assert measurement.prepare_all(Side.A, CHALLENGE, [], parameters) == []
    assert "sketch_share" not in repr(sketches[0])


def test_one_share_of_m_out_of_place_fails(identity):
    m = np.zeros(40, dtype=np.uint64)
    assert passed_range_check(m, identity)
    m[39] = 1
    assert not passed_range_check(m, identity)
    m[39] = 2 ** (64 - identity.range_bits)
    assert passed_range_check(m, identity)


def test_a_sketch_share_of_another_length_is_refused(identity, rng):
    with pytest.raises(MalformedMessage, match="101 elements"):
        range_operand(Side.A, uniform(rng, 102), projections(CHALLENGE, identity), identity)
