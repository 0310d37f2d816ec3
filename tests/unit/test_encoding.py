"""Updates under a site's own weight, and class counts, as ring vectors."""

from __future__ import annotations

import numpy as np
import pytest

from protocol import release
from protocol.arithmetic.fixed_point import clip, encode
from protocol.arithmetic.ring import Ring, Signed, from_bytes, to_signed
from protocol.errors import UnusableUpdate
from protocol.parameters import StudyParameters
from protocol.protection.interface import Encoded
from protocol.protection.shares import CHUNK, encode_counts, encode_update

# --- encoding ---------------------------------------------------------------------------------------------------------

SIZE = CHUNK + 7
"""Over a chunk's edge, so that the weight's coordinate begins a place of its own."""
PARAMETERS = StudyParameters(dimension=SIZE + 1, clip_norm=2.0, weight_grid=4, least_contributors=3)
LAYERS = [("weight", CHUNK), ("bias", 7)]


def vector_of(made: Encoded) -> Ring:
    return from_bytes(b"".join(made.pieces), PARAMETERS.dimension)


@pytest.mark.parametrize(("length", "clipped"), [(1.5, False), (9.0, True)])
def test_the_update_is_clipped_then_weighed_and_the_weight_comes_last(length: float, clipped: bool) -> None:
    drawn = np.random.default_rng(2).normal(size=SIZE)
    update = (drawn * length / np.linalg.norm(drawn)).astype(np.float32)
    made = encode_update(update, LAYERS, 0.7, PARAMETERS, bytes(32), own_weighted=True)
    vector = to_signed(vector_of(made))
    # Stochastic rounding moves a value by less than one ring unit. A norm sums SIZE squares in float64, so clipped
    # values, at most 2^21 ring units, are off by less than (SIZE + 4) 2^-53 of that.
    norm = float(np.linalg.norm(update.astype(np.float64)))
    shortened = update.astype(np.float64) * min(1.0, 2.0 / norm)
    assert np.max(np.abs(vector[:-1] - 0.7 * shortened * PARAMETERS.scale)) < 1 + (SIZE + 4) * 2.0**-32
    assert abs(int(vector[-1]) - 0.7 * PARAMETERS.encoded_norm) < 1
    assert (made.clipped, made.norm) == (clipped, pytest.approx(min(norm, 2.0), rel=(SIZE + 4) * 2.0**-53))


def test_a_value_that_is_no_number_names_its_layer() -> None:
    update = np.zeros(SIZE, dtype=np.float32)
    update[-1] = np.nan
    with pytest.raises(UnusableUpdate, match="layer 'bias': 1 of 7"):
        encode_update(update, LAYERS, 0.7, PARAMETERS, bytes(32), own_weighted=True)


def test_counts_are_plain_integers() -> None:
    vector = vector_of(encode_counts((3, 0, 17), PARAMETERS))
    assert vector[:3].tolist() == [3, 0, 17]
    assert not vector[3:].any()
    with pytest.raises(UnusableUpdate, match="class counts"):
        encode_counts((0, 0), PARAMETERS)


# --- own weights ------------------------------------------------------------------------------------------------------

OF_WEIGHTS = StudyParameters(dimension=65, clip_norm=1.0, least_contributors=3)
E = OF_WEIGHTS.encoded_norm
HONEST_WEIGHTS = (0.75, 0.5, 0.5, 1.0)
RNG = np.random.default_rng(41)


def honest_vectors() -> list[Ring]:
    """(w g, w C) of sites whose updates point the same way and fill the clip norm."""
    direction = clip(np.ones(64), OF_WEIGHTS.clip_norm)[0]
    return [encode(w * np.append(direction, OF_WEIGHTS.clip_norm), OF_WEIGHTS, RNG.bytes(32)) for w in HONEST_WEIGHTS]


def opened(vectors: list[Ring]) -> Signed:
    """The sum as a site opens it, within the bound of a self-weighted sum."""
    total = np.asarray(np.sum(vectors, axis=0, dtype=np.uint64))
    signed = to_signed(total)
    bound = release.self_weighted_bound(OF_WEIGHTS, len(vectors))
    assert np.all(np.abs(signed) <= bound)
    return signed


def test_honest_updates_that_all_fill_the_clip_norm_pass():
    total = opened(honest_vectors())
    release.require_clipped_sum(total[:-1], int(total[-1]), 4)
    average = release.average_chunk(total[:-1], release.own_weights_sum(int(total[-1]), OF_WEIGHTS, 4), OF_WEIGHTS)
    # n (1 + sqrt(D)) ring units of rounding over a sum of weights of 2.75 E
    assert np.linalg.norm(average) <= OF_WEIGHTS.clip_norm * (1 + 4 * 9 / (2.75 * E)) + 2.0**-20
