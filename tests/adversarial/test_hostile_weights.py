"""A site that gives itself a weight that it must not have, under a rule by which sites weigh themselves."""

from __future__ import annotations

import numpy as np
import pytest

from protocol import release
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.ring import Ring, Signed, from_signed, to_signed
from protocol.errors import AggregateOutOfBounds
from protocol.mpc import range_check
from protocol.parameters import StudyParameters
from protocol.sharing import Side

PARAMETERS = StudyParameters(dimension=65, clip_norm=1.0, least_contributors=3)
E = PARAMETERS.encoded_norm
HONEST_WEIGHTS = (0.75, 0.5, 0.5, 1.0)
RNG = np.random.default_rng(41)


def honest_vectors() -> list[Ring]:
    """(w g, w C) of sites whose updates point the same way and fill the clip norm."""
    direction = clip(np.ones(64), PARAMETERS.clip_norm)[0]
    return [encode(w * np.append(direction, PARAMETERS.clip_norm), PARAMETERS, RNG.bytes(32)) for w in HONEST_WEIGHTS]


def hostile_vector(weight_units: int, update_units: int = 0) -> Ring:
    """Anything in the coordinate of the weight, and ``update_units`` of length spread over the model's."""
    vector = np.full(65, update_units // 8, dtype=np.int64)  # 64 equal coordinates: length 8 times one of them
    vector[-1] = weight_units
    return from_signed(vector)


def passes_range_check(vector: Ring) -> bool:
    """All 40 projections, for 20 challenges and sharings."""
    modulus_bits = 64 - PARAMETERS.range_bits
    for _ in range(20):
        rows = range_check.projections(RNG.bytes(32), PARAMETERS)
        share_b = RNG.integers(0, 2**64, vector.size, dtype=np.uint64)
        u = range_check.operand(Side.A, vector - share_b, rows, PARAMETERS)
        v = range_check.operand(Side.B, share_b, rows, PARAMETERS)
        w = (u - v) & np.uint64((1 << modulus_bits) - 1)
        if np.any(w > 1):
            return False
    return True


def opened(vectors: list[Ring]) -> Signed:
    """The sum as a site opens it, within the bound of a self-weighted sum."""
    total = np.asarray(np.sum(vectors, axis=0, dtype=np.uint64))
    signed = to_signed(total)
    bound = release.self_weighted_bound(PARAMETERS, len(vectors))
    assert np.all(np.abs(signed) <= bound)
    return signed


def test_a_negative_weight_cannot_make_everybodys_step_larger_than_the_clip_norm():
    """The honest weights sum to 2.75. Less 2.5, the average is 11 times as long, and every other check lets it pass."""
    hostile = hostile_vector(int(-2.5 * E))
    assert passes_range_check(hostile)
    total = opened([*honest_vectors(), hostile])
    weights = release.own_weights_sum(int(total[-1]), PARAMETERS, 5)
    average = release.average_chunk(total[:-1], weights, PARAMETERS)
    assert np.linalg.norm(average) > 10 * PARAMETERS.clip_norm
    with pytest.raises(AggregateOutOfBounds, match="self-weighted updates has norm"):
        release.require_clipped_sum(total[:-1], int(total[-1]), 5)


def test_honest_updates_that_all_fill_the_clip_norm_pass():
    total = opened(honest_vectors())
    release.require_clipped_sum(total[:-1], int(total[-1]), 4)
    average = release.average_chunk(total[:-1], release.own_weights_sum(int(total[-1]), PARAMETERS, 4), PARAMETERS)
    # n (1 + sqrt(D)) ring units of rounding over a sum of weights of 2.75 E
    assert np.linalg.norm(average) <= PARAMETERS.clip_norm * (1 + 4 * 9 / (2.75 * E)) + 2.0**-20


@pytest.mark.parametrize("weight", [64.0, -64.0, 2.0**41])
def test_a_weight_beyond_the_range_check_leaves_the_site_out(weight: float):
    assert not passes_range_check(hostile_vector(int(weight * E)))


def test_a_site_may_count_as_several_which_no_check_sees():
    """What the threat model admits: twice the largest weight with twice the update, if the others leave room."""
    light = [encode(np.append(np.zeros(64), 0.25), PARAMETERS, RNG.bytes(32)) for _ in range(8)]
    hostile = hostile_vector(2 * E, update_units=2 * E)
    assert passes_range_check(hostile)
    total = opened([*light, hostile])
    release.require_clipped_sum(total[:-1], int(total[-1]), 9)
    weights = release.own_weights_sum(int(total[-1]), PARAMETERS, 9)
    moved = float(np.linalg.norm(release.average_chunk(total[:-1], weights, PARAMETERS)))
    # 2 of 4 instead of 1 of 3; each light weight is rounded by less than a unit, the update by 8 units of length
    assert moved == pytest.approx(1 / 2, abs=32 / E)
