"""Isolation against two independent ways to the same number: projections of tensors, and attackers who estimate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.arithmetic.fixed_point import Update, decode, encode
from protocol.arithmetic.ring import Usage, expand
from protocol.errors import ProtocolViolation
from protocol.parameters import StudyParameters
from protocol.policy.exposure import MOST_COALITIONS, SeenSums
from protocol.policy.memory import KEPT_LENGTH, kept_update, rounding_noise, sketched

# --- isolation --------------------------------------------------------------------------------------------------------

SITES = 4


def moving(rng: np.random.Generator, rows: int, dimension: int, pace: float) -> np.ndarray:
    """Updates that change by about ``pace`` of their length from one round to the next."""
    steps = rng.normal(size=(rows, dimension))
    steps[1:] *= pace
    return np.cumsum(steps, axis=0)


def projected(weights: np.ndarray, updates: np.ndarray, row: int, site: int) -> float:
    """Relative distance of e_s (x) u_t from the span of the rows R_r (x) u_r: least squares, nothing clever."""
    rows = np.stack([np.kron(w, u) for w, u in zip(weights, updates, strict=True)])
    target = np.kron(np.eye(weights.shape[1])[site], updates[row])
    solution = np.linalg.lstsq(rows.T, target, rcond=1e-13)[0]
    return float(np.linalg.norm(target - rows.T @ solution) / np.linalg.norm(target))


@pytest.mark.parametrize("pace", [0.05, 0.5, 2.0])
def test_the_figure_is_the_residual_of_a_least_squares_problem(pace: float) -> None:
    rng = np.random.default_rng(5)
    updates = moving(rng, 6, 30, pace)
    weights = rng.integers(0, 5, (6, SITES)) / 4
    table = SeenSums(weights, updates @ updates.T, np.zeros(6)).figures()
    after = SeenSums(weights[:5], updates[:5] @ updates[:5].T, np.zeros(5)).after(
        weights[5:], updates[:5] @ updates[5], float(updates[5] @ updates[5]), 0.0
    )
    least = np.ones(SITES)
    for row in range(6):
        for site in np.flatnonzero(weights[row]):
            expected = projected(weights, updates, row, int(site))
            assert table[row, site] == pytest.approx(expected, abs=1e-4)
            least[site] = min(least[site], expected)
            if row == 5:
                assert after.newest[0, site] == pytest.approx(expected, abs=1e-4)
    np.testing.assert_allclose(after.least[0], least, atol=1e-4)


def test_an_attacker_who_knows_how_updates_move_errs_by_exactly_this_much() -> None:
    """Every site's updates drawn with one covariance over the rounds; the best linear estimate from noisy sums."""
    rng = np.random.default_rng(6)
    rows, draws, noise = 5, 60_000, 0.05
    path = moving(rng, rows, 8, 0.3)
    gram = path @ path.T
    weights = rng.integers(1, 5, (rows, SITES)) / 4
    factor = np.linalg.cholesky(gram)
    drawn = np.einsum("rk,skd->srd", factor, rng.normal(size=(SITES, rows, draws)))
    sums = np.einsum("rs,srd->rd", weights, drawn) + np.sqrt(noise) * rng.normal(size=(rows, draws))
    covariance = (weights @ weights.T) * gram + noise * np.eye(rows)
    table = SeenSums(weights, gram, np.full(rows, noise)).figures()
    for site in range(SITES):
        for row in range(rows):
            best = np.linalg.solve(covariance, weights[:, site] * gram[row]) @ sums
            error = np.mean((best - drawn[site, row]) ** 2) / gram[row, row]
            assert np.sqrt(error) == pytest.approx(table[row, site], rel=0.02)


@pytest.mark.parametrize("sites", [3, 4, 9])
def test_the_same_list_again_and_again_never_says_more_than_its_sum(sites: int) -> None:
    """Also where the updates are all the same, two hundred times: the matrix is singular and the figure is not."""
    for pace in (0.0, 1e-6, 0.3):
        updates = moving(np.random.default_rng(1), 200, 12, pace)
        table = SeenSums(np.ones((200, sites)), updates @ updates.T, np.zeros(200)).figures()
        np.testing.assert_allclose(table, np.sqrt(1 - 1 / sites), atol=2e-5)


def test_the_worst_colluders_are_taken_out_and_nobody_is_their_own() -> None:
    rng = np.random.default_rng(9)
    updates = moving(rng, 4, 10, 0.5)
    weights = rng.integers(1, 5, (4, SITES)) / 4
    gram, noise = updates @ updates.T, np.zeros(4)
    alone = [SeenSums(np.delete(weights, told, axis=1), gram, noise).figures() for told in range(SITES)]
    expected = np.ones((4, SITES))
    for told, figures in enumerate(alone):
        others = [site for site in range(SITES) if site != told]
        expected[:, others] = np.minimum(expected[:, others], figures)
    found = SeenSums(weights, gram, noise, colluders=1)
    np.testing.assert_allclose(found.figures(), expected, atol=1e-6)
    after = SeenSums(weights[:3], gram[:3, :3], noise[:3], colluders=1).after(
        weights[3:], gram[3, :3], float(gram[3, 3]), 0.0
    )
    np.testing.assert_allclose(after.newest[0], expected[3], atol=1e-6)
    np.testing.assert_allclose(after.least[0], expected.min(axis=0), atol=1e-6)


def test_all_others_collude() -> None:
    table = SeenSums(np.ones((1, 3)), np.eye(1), np.zeros(1), colluders=9).figures()
    np.testing.assert_allclose(table, 0, atol=1e-5)


def test_scale_does_not_matter() -> None:
    rng = np.random.default_rng(10)
    updates = moving(rng, 5, 10, 0.2)
    weights = rng.integers(1, 33, (5, SITES)) / 32
    gram = updates @ updates.T
    one = SeenSums(weights, gram, np.zeros(5)).figures()
    for scale in (1e-60, 1e60):
        np.testing.assert_allclose(SeenSums(weights, gram * scale, np.zeros(5)).figures(), one, rtol=1e-6)


def test_what_cannot_be_computed_counts_as_exposed() -> None:
    nobody = np.zeros((1, 2))
    for broken in (np.nan, np.inf):
        seen = SeenSums(np.ones((1, 2)), np.array([[broken]]), np.zeros(1))
        np.testing.assert_array_equal(seen.after(np.ones((1, 2)), np.ones(1), 1.0, 0.0).least, nobody)
    sound = SeenSums(np.ones((1, 2)), np.ones((1, 1)), np.zeros(1))
    np.testing.assert_array_equal(sound.after(np.ones((1, 2)), np.full(1, np.nan), 1.0, 0.0).newest, nobody)
    np.testing.assert_array_equal(sound.after(np.ones((1, 2)), np.ones(1), 0.0, 0.0).newest, nobody)
    many = 2 * MOST_COALITIONS
    crowd = SeenSums(np.ones((1, many)), np.ones((1, 1)), np.zeros(1), colluders=2)
    assert crowd.after(np.ones((1, many)), np.ones(1), 1.0, 0.0).least.max() == 0
    np.testing.assert_array_equal(crowd.figures(), np.zeros((1, many)))


def test_a_matrix_that_is_no_covariance_counts_as_exposed() -> None:
    """No updates have such products, so whoever made them is not believed."""
    seen = SeenSums(np.ones((2, 3)), np.array([[1.0, 5.0], [5.0, 1.0]]), np.zeros(2))
    assert seen.after(np.ones((1, 3)), np.ones(2), 1.0, 0.0).least.max() == 0


def test_sums_of_nothing_and_updates_of_nothing_say_nothing() -> None:
    seen = SeenSums(np.array([[0.0, 0.0], [1.0, 1.0]]), np.diag([1.0, 0.0]), np.zeros(2))
    np.testing.assert_array_equal(seen.figures(), np.ones((2, 2)))
    after = seen.after(np.array([[1.0, 0.0], [0.0, 0.0]]), np.zeros(2), 1.0, 0.0)
    np.testing.assert_allclose(after.least, [[0, 1], [1, 1]], atol=1e-5)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ProtocolViolation, match="need as many"):
        SeenSums(np.ones((2, 3)), np.eye(3), np.zeros(2))


# --- kept update ------------------------------------------------------------------------------------------------------

SEED = bytes(range(32))


def test_short_updates_are_kept_as_they_are() -> None:
    update = np.random.default_rng(0).normal(size=KEPT_LENGTH).astype(np.float32)
    np.testing.assert_array_equal(kept_update(update, SEED), update)
    assert kept_update(update, SEED).dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sketch_is_what_was_kept_before(dtype: type[Any]) -> None:
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
    np.testing.assert_array_equal(sketched(update, SEED, layers), expected.reshape(-1) / 2)


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
