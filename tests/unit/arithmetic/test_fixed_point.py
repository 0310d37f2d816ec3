from __future__ import annotations

import math

import numpy as np
import pytest

from protocol.arithmetic import fixed_point
from protocol.arithmetic.kernels import Scaling
from protocol.errors import ProtocolViolation, UnusableUpdate

SEED = bytes(range(32))
LAYERS = (("conv.weight", 3), ("conv.bias", 0), ("head.weight", 2))


def test_a_finite_update_passes():
    fixed_point.check_finite(np.arange(5, dtype=np.float32), LAYERS)
    fixed_point.check_finite(np.arange(5, dtype=np.float64), LAYERS)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("place", "layer"), [(2, "conv.weight"), (3, "head.weight")])
def test_a_value_that_is_not_finite_names_its_layer(bad, place, layer):
    update = np.ones(5, dtype=np.float32)
    update[place] = bad
    with pytest.raises(UnusableUpdate, match=rf"{layer}.*1 of"):
        fixed_point.check_finite(update, LAYERS)


@pytest.mark.parametrize(
    "update", [np.ones(4, dtype=np.float32), np.ones((5, 1), dtype=np.float32), np.ones(5, dtype=np.int64)]
)
def test_another_shape_or_dtype_is_refused(update):
    with pytest.raises(UnusableUpdate, match=r"float64\[5\]"):
        fixed_point.check_finite(update, LAYERS)


def test_nothing_is_left_alone():
    for update in (np.zeros(3), np.zeros(0)):
        values, was_clipped = fixed_point.clip(update, 1.0)
        assert not was_clipped
        assert np.array_equal(values, update)


@pytest.mark.parametrize("size", [1e-300, 1.0, 1e30, 1e307])
def test_a_long_update_is_scaled_to_the_norm_whatever_its_size(size, rng):
    update = rng.normal(size=1000) * size
    norm = size / 4
    values, was_clipped = fixed_point.clip(update, norm)
    assert was_clipped
    # two sums of 1000 squares, two roots, three products: each rounding at most 2^-53
    assert math.isclose(np.linalg.norm(values / norm), 1.0, rel_tol=2010 * 2.0**-53)
    # two quotients, two products and those of the clipping itself; the scale's own error cancels
    direction = values / values[0] * update[0]
    np.testing.assert_allclose(direction / size, update / size, rtol=8 * 2.0**-53, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_cannot_be_clipped(bad):
    with pytest.raises(UnusableUpdate, match="1 of 2"):
        fixed_point.clip(np.array([bad, 1.0]), 1.0)


def test_the_norm_is_compared_exactly_on_the_boundary():
    """(3, 4) has norm 5: one unit in the last place more is clipped, whatever the blocks' sizes."""
    for scale in (2.0**-1060, 2.0**-30, 1.0, 2.0**1000):
        update = np.zeros(9000)
        update[[0, 8000]] = 3 * scale, 4 * scale
        assert not fixed_point.clip(update, 5 * scale)[1]
        assert fixed_point.clip(update, np.nextafter(5 * scale, 0))[1]


def test_blocks_of_very_different_sizes_make_one_norm():
    update = np.zeros(3 * 4096)
    update[4096], update[8192] = 1e-300, 1e-200
    values, was_clipped = fixed_point.clip(update, 1e-250)
    assert was_clipped
    # a unit, a root, a quotient and a product: four roundings of at most 2^-53
    assert math.isclose(values[8192], 1e-250, rel_tol=2**-50)
    assert values[4096] == 0.0  # 1e-350, below the smallest float64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e30])
@pytest.mark.parametrize("weight", [1.0, 5 / 32, 0.0])
def test_piece_by_piece_gives_the_bits_of_clip_weight_encode(blocks, rng, dtype, size, weight):
    update = (rng.normal(size=blocks.dimension) * size).astype(dtype)
    layers = (("first", 5000), ("last", 1))
    scaling = fixed_point.scaling_of(update, layers, blocks, weight)
    clipped, was_clipped = fixed_point.clip(update, blocks.clip_norm)
    assert scaling.clips == was_clipped == (size > 1e-6)
    expected = fixed_point.encode(clipped * weight, blocks, SEED)
    buffer = np.empty(1000, dtype=np.uint64)
    for start in range(0, update.size, buffer.size):
        values = update[start : start + buffer.size]
        fixed_point.encode_into(buffer[: values.size], values, scaling, SEED, start)
        assert np.array_equal(buffer[: values.size], expected[start : start + buffer.size])


def test_scaling_of_an_update_names_the_layer_that_is_not_finite(identity):
    update = np.zeros(101, dtype=np.float32)
    update[100] = math.nan
    with pytest.raises(UnusableUpdate, match="'last': 1 of 1"):
        fixed_point.scaling_of(update, (("first", 100), ("last", 1)), identity)
    with pytest.raises(UnusableUpdate, match=r"float64\[101\]"):
        fixed_point.scaling_of(update[:100], (("first", 101),), identity)
    with pytest.raises(ProtocolViolation, match=r"\[0, 1\]"):
        fixed_point.scaling_of(update, (("first", 101),), identity, 1.01)


def test_encode_into_refuses_what_does_not_fit():
    buffer = np.empty(2, dtype=np.uint64)
    with pytest.raises(UnusableUpdate, match="3 fraction bits"):
        fixed_point.encode_into(buffer, np.array([0.0, 2.0**59]), Scaling(scale=8.0), SEED, 0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**62])
def test_a_value_that_does_not_fit_is_refused(identity, value):
    with pytest.raises(UnusableUpdate, match="2\\^62"):
        fixed_point.encode(np.array([0.0, value]), identity, SEED)


@pytest.mark.parametrize("alpha", [-0.001, 1.001, math.nan, math.inf])
def test_a_weight_outside_the_unit_interval_is_refused(alpha):
    with pytest.raises(ProtocolViolation, match=r"\[0, 1\]"):
        fixed_point.quantise_weight(alpha, 32)
