"""Honest weights that sites give themselves pass; hostile ones are attacks ``weight-negative`` and others."""

from __future__ import annotations

import numpy as np

from protocol import release
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.ring import Ring, Signed, to_signed
from protocol.parameters import StudyParameters

PARAMETERS = StudyParameters(dimension=65, clip_norm=1.0, least_contributors=3)
E = PARAMETERS.encoded_norm
HONEST_WEIGHTS = (0.75, 0.5, 0.5, 1.0)
RNG = np.random.default_rng(41)


def honest_vectors() -> list[Ring]:
    """(w g, w C) of sites whose updates point the same way and fill the clip norm."""
    direction = clip(np.ones(64), PARAMETERS.clip_norm)[0]
    return [encode(w * np.append(direction, PARAMETERS.clip_norm), PARAMETERS, RNG.bytes(32)) for w in HONEST_WEIGHTS]


def opened(vectors: list[Ring]) -> Signed:
    """The sum as a site opens it, within the bound of a self-weighted sum."""
    total = np.asarray(np.sum(vectors, axis=0, dtype=np.uint64))
    signed = to_signed(total)
    bound = release.self_weighted_bound(PARAMETERS, len(vectors))
    assert np.all(np.abs(signed) <= bound)
    return signed


def test_honest_updates_that_all_fill_the_clip_norm_pass():
    total = opened(honest_vectors())
    release.require_clipped_sum(total[:-1], int(total[-1]), 4)
    average = release.average_chunk(total[:-1], release.own_weights_sum(int(total[-1]), PARAMETERS, 4), PARAMETERS)
    # n (1 + sqrt(D)) ring units of rounding over a sum of weights of 2.75 E
    assert np.linalg.norm(average) <= PARAMETERS.clip_norm * (1 + 4 * 9 / (2.75 * E)) + 2.0**-20
