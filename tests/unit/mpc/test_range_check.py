"""The range check of docs/protocol.md 6: honest sites pass, wrap-around is caught, and what happens without it."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.arithmetic import fixed_point
from protocol.arithmetic.ring import Usage, expand, to_signed
from protocol.errors import AggregateOutOfBounds, MalformedMessage
from protocol.mpc import measurement, product
from protocol.mpc.measurement import distance_factor
from protocol.mpc.sketch import (
    passed_range_check,
    projections,
    range_operand,
    sketch_vector,
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


def test_honest_updates_pass_through_both_servers(parameters, rng):
    for norm in (0.0, 0.01, 1.0):
        assert passes(rng, honest(rng, parameters, norm), parameters)


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
