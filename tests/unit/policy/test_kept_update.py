"""A sketch keeps what isolation needs, and rounding's noise is what it is said to be."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.arithmetic.fixed_point import decode, encode
from protocol.parameters import StudyParameters
from protocol.policy.isolation import SeenSums
from protocol.policy.kept_update import KEPT_LENGTH, kept_update, rounding_noise

SEED = bytes(range(32))


def test_short_updates_are_kept_as_they_are() -> None:
    update = np.random.default_rng(0).normal(size=KEPT_LENGTH).astype(np.float32)
    np.testing.assert_array_equal(kept_update(update, SEED), update)
    assert kept_update(update, SEED).dtype == np.float64


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
