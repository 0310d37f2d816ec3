"""A sketch keeps what isolation needs, and rounding's noise is what it is said to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.arithmetic.fixed_point import Update, decode, encode
from protocol.arithmetic.kernels import NUMBA, NUMPY, Kernels
from protocol.arithmetic.ring import Usage, expand
from protocol.parameters import StudyParameters
from protocol.policy.isolation import SeenSums
from protocol.policy.memory import KEPT_LENGTH, kept_update, rounding_noise, sketched

SEED = bytes(range(32))


def test_short_updates_are_kept_as_they_are() -> None:
    update = np.random.default_rng(0).normal(size=KEPT_LENGTH).astype(np.float32)
    np.testing.assert_array_equal(kept_update(update, SEED), update)
    assert kept_update(update, SEED).dtype == np.float64


@pytest.mark.parametrize("kernels", [NUMBA, NUMPY], ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sketch_is_what_was_kept_before(kernels: Kernels, dtype: type[Any]) -> None:
    """To the bit: what a site keeps now is compared with sketches that it wrote long ago."""
    update: Update = np.random.default_rng(5).normal(size=140_000).astype(dtype)
    layers = (("weights", 139_000), ("biases", 1_000))
    expected = np.zeros((4, KEPT_LENGTH // 4))
    for number, layer in enumerate((update[:139_000], update[139_000:])):
        for start in range(0, layer.size, 2**16):
            piece = layer[start : start + 2**16].astype(np.float64)
            words = expand(SEED, Usage.MEMORY, piece.size, start=number * 2**40 + start)
            for block in range(4):
                lane = (words >> np.uint64(16 * block)).astype(np.int64)
                sign = 1.0 - 2.0 * ((lane >> 15) & 1)
                expected[block] += np.bincount(lane & 1023, weights=sign * piece, minlength=1024)
    np.testing.assert_array_equal(sketched(update, SEED, layers, kernels), expected.reshape(-1) / 2)


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_noise_is_that_of_the_fractions(weight: float) -> None:
    update = np.append(np.random.default_rng(6).normal(size=70_000), [0.0, -1e-30, 3.0]).astype(np.float32)
    fraction = np.mod(update.astype(np.float64) * (weight * 2.0**20), 1.0)
    pieces = [float(np.sum(one * (1 - one))) for one in (fraction[: 2**16], fraction[2**16 :])]
    assert rounding_noise(update, weight, 2.0**20) == sum(pieces) / 2.0**40


def test_long_updates_keep_their_products() -> None:
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(3, 200_000)).astype(np.float32)
    updates[1] += updates[0]
    kept = np.stack([kept_update(update, SEED) for update in updates])
    assert kept.shape == (3, KEPT_LENGTH)
    lengths = np.linalg.norm(updates, axis=1)
    cosines = (updates @ updates.T) / np.outer(lengths, lengths)
    # five standard deviations of an inner product of unit vectors: sqrt(2 / k) at most
    np.testing.assert_allclose(kept @ kept.T / np.outer(lengths, lengths), cosines, atol=5 * np.sqrt(2 / KEPT_LENGTH))


def test_a_sketch_is_linear_and_depends_on_its_seed() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 70_000))
    both = kept_update(a, SEED) + kept_update(b, SEED)
    np.testing.assert_allclose(kept_update(a + b, SEED), both, atol=1e-9)
    other = kept_update(a, bytes(32))
    assert abs(other @ kept_update(a, SEED)) < 0.2 * (other @ other)


@pytest.mark.parametrize("pace", [0.03, 0.5])
def test_isolation_from_sketches_is_isolation(pace: float) -> None:
    rng = np.random.default_rng(3)
    rows, dimension, sites = 24, 40_000, 4
    steps = rng.normal(size=(rows, dimension))
    steps[1:] *= pace
    updates = np.cumsum(steps, axis=0)
    kept = np.stack([kept_update(update, SEED) for update in updates])
    weights = rng.integers(16, 33, (rows, sites)) / 32
    whole = SeenSums(weights, updates @ updates.T, np.zeros(rows)).figures()
    sketched = SeenSums(weights, kept @ kept.T, np.zeros(rows)).figures()
    # three standard deviations, and what fitting 24 rows of 4,096 takes away
    assert np.all(sketched <= whole * 1.05)
    assert np.all(sketched >= whole * 0.94)


def test_rounding_adds_the_noise_that_is_counted() -> None:
    parameters = StudyParameters(
        dimension=20_000, clip_norm=1.0, encoded_norm_log2=20, weight_grid=4, least_contributors=3
    )
    update = np.random.default_rng(4).normal(size=20_000) / 2**10
    expected = rounding_noise(update, 0.75, parameters.scale)
    errors = [
        decode(encode(0.75 * update, parameters, bytes([seed]) * 32), parameters) - 0.75 * update for seed in range(20)
    ]
    assert np.mean([error @ error for error in errors]) == pytest.approx(expected, rel=0.02)
    assert rounding_noise(np.array([0.0, 0.25, 1.0]), 1.0, 4.0) == 0
