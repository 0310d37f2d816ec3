from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from protocol import release
from protocol.arithmetic import fixed_point
from protocol.arithmetic.kernels import open_average
from protocol.arithmetic.ring import from_signed
from protocol.errors import AggregateOutOfBounds, ProtocolViolation
from protocol.rules.fedavg import counts_vector

T_SEED = bytes(range(1, 33))


def test_elements_behind_the_model_open_without_a_bound():
    tags = np.array([2**63, 2**64 - 1, 5], dtype=np.uint64)
    vector = release.masked_sum_chunk(tags, T_SEED, 1001)
    assert not np.any(vector == tags)
    assert np.array_equal(release.open_output_chunk(vector, T_SEED, 1001), tags)


def test_server_b_gets_a_masked_vector_and_inputs_are_left_alone():
    y_a, y_b = np.arange(9, dtype=np.uint64), np.arange(9, dtype=np.uint64)
    masked = release.masked_sum_chunk(y_a, T_SEED, 0)
    assert not np.any(masked == y_a)
    before = masked.copy()
    release.combine_chunk(masked, y_b)
    assert np.array_equal(masked, before)
    assert np.array_equal(y_b, y_a)


@pytest.mark.parametrize(("value", "fits"), [(100, True), (-100, True), (101, False), (-101, False), (-(2**63), False)])
def test_every_coordinate_is_held_to_the_bound(value, fits):
    vector = release.masked_sum_chunk(from_signed(np.array([0, value, 3])), T_SEED, 10)
    if fits:
        assert release.open_aggregate_chunk(vector, T_SEED, 10, 100).tolist() == [0, value, 3]
    else:
        with pytest.raises(AggregateOutOfBounds, match="1 of 3 coordinates from 10"):
            release.open_aggregate_chunk(vector, T_SEED, 10, 100)


def test_chunks_of_different_lengths_are_refused():
    short, long = np.zeros(3, dtype=np.uint64), np.zeros(4, dtype=np.uint64)
    with pytest.raises(ProtocolViolation, match="equally long"):
        release.combine_chunk(short, long)
    with pytest.raises(ProtocolViolation, match="equally long"):
        release.sum_chunk([lambda start, stop: short], 0, 4)


@pytest.mark.parametrize("weights", [0.0, -1.0, float("nan")])
def test_a_sum_of_weights_that_is_not_positive_is_refused(identity, weights):
    with pytest.raises(ProtocolViolation, match="positive"):
        release.average_chunk(np.zeros(1, dtype=np.int64), weights, identity)


@pytest.mark.parametrize("contributors", [1, 2, 100])
def test_the_bound_of_a_self_weighted_sum_counts_every_weight_as_one(parameters, contributors):
    bound = release.self_weighted_bound(parameters, contributors)
    assert bound == 5 * parameters.encoded_norm * contributors + contributors


@pytest.mark.parametrize("grid", [1, 3, 4, 32])
def test_sites_that_weigh_themselves_get_the_average_of_their_weights(identity, rng, grid):
    parameters = identity.model_copy(update={"weight_grid": grid})
    weights = [1 / grid, 1 / grid, 1.0, max(1 / grid, 0.37)]
    updates = [fixed_point.clip(rng.normal(size=100), identity.clip_norm)[0] for _ in weights]
    total = np.zeros(101, dtype=np.uint64)
    for weight, update in zip(weights, updates, strict=True):
        shared = weight * np.append(update, identity.clip_norm)
        total += fixed_point.encode(shared, parameters, rng.bytes(32))
    bound = release.self_weighted_bound(parameters, len(weights))
    opened = release.open_aggregate_chunk(release.masked_sum_chunk(total, T_SEED, 0), T_SEED, 0, bound)
    found = release.own_weights_sum(int(opened[-1]), parameters, len(weights))
    # every summand is off by less than one ring unit
    assert abs(found - sum(weights)) < len(weights) / parameters.encoded_norm
    release.require_clipped_sum(opened[:-1], int(opened[-1]), len(weights))
    average = release.average_chunk(opened[:-1], found, parameters)
    exact = sum(w * u for w, u in zip(weights, updates, strict=True)) / sum(weights)
    # n 2^-f in the numerator over W, W off by n / E relative to coordinates of at most C = E 2^-f, a float32 rounding
    each = len(weights) / parameters.scale / found
    assert np.max(np.abs(average - exact)) < 2 * each + identity.clip_norm * 2.0**-24


@pytest.mark.parametrize("contributors", [1, 3, 10])
def test_the_sum_of_own_weights_lies_between_all_smallest_and_all_one(identity, contributors):
    norm = identity.encoded_norm
    lowest, highest = contributors * norm // 32 - contributors, contributors * norm + contributors
    assert release.own_weights_sum(lowest, identity, contributors) == lowest / norm
    assert release.own_weights_sum(highest, identity, contributors) == highest / norm
    for altered in (lowest - 1, highest + 1, 0, -highest, 2**62):
        with pytest.raises(AggregateOutOfBounds, match=f"weights of {contributors} sites sum to {altered} "):
            release.own_weights_sum(altered, identity, contributors)


@pytest.mark.parametrize("piece", [7, 100, 1 << 16])
def test_a_self_weighted_sum_is_no_longer_than_clipped_updates_of_its_weights(identity, monkeypatch, piece):
    monkeypatch.setattr(release, "_NORM_PIECE", piece)
    norm, contributors, size = identity.encoded_norm, 4, 100
    last = 2 * norm
    most = last + contributors * (1 + 10)  # one ring unit for each weight, and for each of 10^2 coordinates
    longest = np.zeros(size, dtype=np.int64)
    longest[[3, 50]] = most * 3 // 5, most * 4 // 5
    release.require_clipped_sum(longest, last, contributors)
    longest[3] += 2  # 2 * 3/5 of a unit longer, where rounding down had left less than one
    with pytest.raises(AggregateOutOfBounds, match=f"weights sum to {last} reach {most}"):
        release.require_clipped_sum(longest, last, contributors)


def test_the_smallest_weights_rounded_down_are_within_bounds(identity):
    # E / 3 is no integer: rounding down takes a third of a unit from each site, less than the one that is allowed
    parameters = identity.model_copy(update={"weight_grid": 3})
    total = 4 * (parameters.encoded_norm // 3)
    assert release.own_weights_sum(total, parameters, 4) == total / parameters.encoded_norm


def test_class_counts_sum_exactly(identity, rng):
    counts = [rng.integers(0, 10**5, 10) for _ in range(4)]
    total = np.zeros(101, dtype=np.uint64)
    for own in counts:
        total += counts_vector(own.tolist(), identity)
    vector = release.masked_sum_chunk(total, T_SEED, 0)
    opened = release.open_aggregate_chunk(vector, T_SEED, 0, release.self_weighted_bound(identity, 4))
    assert release.class_totals(opened, 10, 4) == tuple(np.sum(counts, axis=0).tolist())


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([5, -1, 3, 0, 0], r"negative in classes \[1\]"),
        ([5, 1, 3, 0, 1], "1 numbers behind the 3 classes"),
        ([5, 1, 3, -7, 1], "2 numbers behind the 3 classes"),
        ([1, 0, 1, 0, 0], "of 3 sites sum to 2"),
        ([0, 0, 0, 0, 0], "of 3 sites sum to 0"),
    ],
)
def test_totals_that_no_counts_sum_to_are_discarded(values, found):
    with pytest.raises(AggregateOutOfBounds, match=found):
        release.class_totals(np.array(values), 3, 3)


def test_a_class_without_samples_is_a_total_of_zero():
    assert release.class_totals(np.array([2, 0, 1]), 3, 3) == (2, 0, 1)


@pytest.mark.parametrize("classes", [0, 6])
def test_more_classes_than_coordinates_are_refused(classes):
    with pytest.raises(ProtocolViolation, match=f"{classes} class counts do not fit a vector of 5"):
        release.class_totals(np.ones(5, dtype=np.int64), classes, 1)


@pytest.mark.parametrize("start", [0, 3, 4096])
def test_opening_and_averaging_in_one_pass_gives_the_same_bits(identity, rng, start):
    opener = release.AverageOpener(T_SEED, 2.0**31, 2.53125, identity)
    for size in (0, 1, 700, 64):  # the last one in a buffer that is longer
        vector = from_signed(rng.integers(-(2**31), 2**31, size))
        vector = release.masked_sum_chunk(vector, T_SEED, start)
        average = np.full(size, np.nan, dtype=np.float32)
        opener.open_into(average, vector, start)
        signed = release.open_aggregate_chunk(vector, T_SEED, start, 2**62)
        assert np.array_equal(average, release.average_chunk(signed, 2.53125, identity))


@pytest.mark.parametrize(("value", "fits"), [(100, True), (-100, True), (101, False), (-101, False), (-(2**63), False)])
def test_the_one_pass_holds_every_coordinate_to_the_bound(identity, value, fits):
    vector = release.masked_sum_chunk(from_signed(np.array([0, value, 3])), T_SEED, 10)
    opener, average = release.AverageOpener(T_SEED, 100.0, 1.0, identity), np.empty(3, dtype=np.float32)
    if fits:
        opener.open_into(average, vector, 10)
        assert average.tolist() == [0.0, value / identity.scale, 3 / identity.scale]
    else:
        with pytest.raises(AggregateOutOfBounds, match="1 of 3 coordinates from 10"):
            opener.open_into(average, vector, 10)


def opened(values, longest, identity):
    """All values, two at once."""
    vector = from_signed(np.array(values))
    opener = release.AverageOpener(T_SEED, longest, 1.0, identity)
    for start in range(0, len(values), 2):
        piece = release.masked_sum_chunk(vector[start : start + 2], T_SEED, start)
        opener.open_into(np.empty(piece.size, dtype=np.float32), piece, start)
    return opener


@pytest.mark.parametrize("values", [[3, -4, 0], [-(2**31) + 1, 0, 2**31 - 1], [-5, 5, -5]])
def test_a_sum_is_no_longer_than_its_weights_allow(identity, values):
    """Exactly the norm passes, in whatever pieces, and with the largest coordinates that there can be."""
    norm = math.isqrt(sum(value * value for value in values))
    opened(values, norm + 1.0, identity).finish()
    squares = sum(value * value for value in values)
    opened(values, math.sqrt(squares), identity).finish()
    with pytest.raises(AggregateOutOfBounds, match="the round is discarded and the model stays as it was"):
        opened(values, max(abs(value) for value in values) * 1.0, identity).finish()


def test_one_coordinate_is_no_longer_than_the_whole(identity):
    with pytest.raises(AggregateOutOfBounds, match="1 of 2 coordinates from 0 on are beyond 7"):
        opened([8, 0, 0], 6.5, identity)


def test_the_longest_sum_is_that_of_clipped_updates(identity):
    grid, n = identity.weight_grid, 5
    assert release.longest_sum(identity, 3 * grid, n) == 3 * identity.encoded_norm + n * math.sqrt(identity.dimension)


def test_a_sum_too_large_to_square_is_refused(identity):
    with pytest.raises(ProtocolViolation, match="take fewer sites"):
        release.AverageOpener(T_SEED, 2.0**33, 1.0, identity)


def test_the_one_pass_needs_weights_and_room(identity):
    with pytest.raises(ProtocolViolation, match="positive"):
        release.AverageOpener(T_SEED, 100.0, 0.0, identity)
    opener = release.AverageOpener(T_SEED, 100.0, 1.0, identity)
    wrong: list[Any] = [np.empty(2, dtype=np.float32), np.empty(3, dtype=np.float64)]
    for average in wrong:
        with pytest.raises(ProtocolViolation, match=r"goes into float32\[3\]"):
            opener.open_into(average, np.zeros(3, dtype=np.uint64), 0)
    for bound, divisor in ((-1, 1.0), (1 << 63, 1.0), (1, 0.0), (1, float("nan"))):
        with pytest.raises(ProtocolViolation, match="divisor above 0"):
            open_average(np.zeros(1, np.uint64), np.zeros(1, np.uint64), bound, divisor, np.empty(1, np.float32))
