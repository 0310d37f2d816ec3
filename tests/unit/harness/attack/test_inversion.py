"""Inversion reads what is there to be read, misses what is not, and is measured beside guessing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from client_agent.learning.data import Examples
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.trainer import loss_gradient
from harness.attack import cli
from harness.attack.inversion import (
    TARGETS,
    How,
    Pool,
    descend,
    guesses,
    hit,
    inverted_line,
    rows_over_biases,
    signal_to_noise,
    structural_similarity,
    true_part,
)
from protocol.errors import ConfigurationError

CPU = torch.device("cpu")
RNG = np.random.default_rng(11)
BY_KEY = {target.key: target for target in TARGETS}
TABLE, IMAGES = BY_KEY["breast-mlp"], BY_KEY["digits-mlp"]


def pool_of(columns: int) -> Pool:
    return Pool(Examples(np.zeros((0, columns), np.float32), np.zeros(0, np.int64)), (columns,), 2, np.ones(columns))


@pytest.mark.parametrize("key", ["breast-linear", "breast-mlp", "digits-linear"])
def test_one_record_alone_is_read_exactly_whatever_the_dense_model(key: str) -> None:
    line = inverted_line(BY_KEY[key], 1, 1, 0, steps=1)
    assert line.by(How.ANALYTIC).exact == 1.0
    assert line.by(How.GUESSED).exact == 0.0


def test_descent_reads_one_record_of_a_table_and_an_image() -> None:
    assert inverted_line(TABLE, 1, 1, 0).by(How.OPTIMISED).close == 1.0
    image = inverted_line(IMAGES, 1, 1, 0)
    assert image.by(How.OPTIMISED).close == 1.0
    assert (image.by(How.OPTIMISED).noise or 0) > (image.by(How.GUESSED).noise or 0) + 10


def test_with_noise_on_records_not_even_one_alone_is_read() -> None:
    for key in ("digits-noise-little", "digits-noise"):
        line = inverted_line(BY_KEY[key], 1, 1, 0, steps=1)
        assert line.by(How.ANALYTIC).exact == line.by(How.ANALYTIC).close == 0.0
    plain = inverted_line(BY_KEY["digits-mlp"], 1, 1, 0, steps=1)
    assert plain.by(How.ANALYTIC).exact == 1.0


def test_many_records_are_not_read_out_of_a_linear_model() -> None:
    """Two rows, one the other's negative, are one weighted mean of 256 records: there is nothing else to be had."""
    line = inverted_line(BY_KEY["breast-linear"], 8, 32, 0, steps=20)
    assert line.by(How.ANALYTIC).exact == line.by(How.OPTIMISED).exact == 0.0


def test_rows_over_biases_of_two_records_are_their_mean_by_what_the_loss_makes_of_each() -> None:
    model = build_model(model_spec("linear", (3,), (), 2), 0)
    X = RNG.normal(size=(2, 3)).astype(np.float32)
    data = Examples(X, np.array([0, 1]))
    found = rows_over_biases(model, loss_gradient(model, data, CPU).astype(np.float64))
    with torch.no_grad():
        of_one = torch.softmax(model(torch.from_numpy(X)), dim=1).numpy() - np.eye(2)
    expected = (of_one[:, :1] * X).sum(axis=0) / of_one[:, 0].sum()
    np.testing.assert_allclose(found[0], expected, rtol=1e-4)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


def test_a_convolution_has_no_rows_to_read() -> None:
    model = build_model(model_spec("cnn", (1, 8, 8), (2, 4), 2), 0)
    assert rows_over_biases(model, np.zeros(10)).shape == (0, 0)


def test_a_descent_of_two_steps_is_near_where_it_began() -> None:
    model = build_model(model_spec("linear", (3,), (), 2), 0)
    found = descend(model, np.ones(8), np.array([0]), (3,), 5, steps=2)
    start = torch.randn((1, 3), generator=torch.Generator().manual_seed(5)).numpy()
    moved = np.abs(found - start)
    assert (moved > 0).all()
    assert (moved < 0.1 + 0.01 + 1e-4).all()  # the rate, and a tenth of it from the middle on


def test_hits_are_counted_by_the_nearest_candidate_in_standard_deviations() -> None:
    pool = Pool(pool_of(2).examples, (2,), 2, np.array([1.0, 100.0]))
    truth = np.array([[0.0, 0.0], [5.0, 500.0], [9.0, 900.0]])
    candidates = np.array([[0.005, 0.5], [5.2, 510.0], [30.0, 0.0], [np.nan, 0.0]])
    found = hit(TABLE, pool, truth, candidates)
    assert found.exact == pytest.approx(1 / 3)
    assert found.close == pytest.approx(2 / 3)
    assert hit(TABLE, pool, truth, np.zeros((0, 2))).close == 0.0


def test_images_are_compared_as_pixels() -> None:
    one = RNG.uniform(size=(8, 8))
    assert structural_similarity(one, one) == pytest.approx(1.0)
    assert abs(structural_similarity(one, RNG.uniform(size=(8, 8)))) < 0.5
    assert signal_to_noise(one, one) == 60.0
    assert signal_to_noise(np.zeros((8, 8)), np.full((8, 8), 0.1)) == pytest.approx(20.0)
    flat = one.reshape(1, -1)
    found = hit(IMAGES, pool_of(64), flat, np.concatenate([flat + 0.05, np.zeros((1, 64))]))
    assert found.close == 1.0
    assert found.exact == 0.0
    nothing = hit(IMAGES, pool_of(64), flat, np.zeros((0, 64)))
    assert (nothing.close, nothing.noise) == (0.0, 0.0)


def test_guesses_are_other_peoples_records_and_columns_of_theirs() -> None:
    others = np.stack([np.arange(20.0), np.arange(20.0)], axis=1)
    records, mixed = guesses(others, 200, np.random.default_rng(0))
    assert (records[:, 0] == records[:, 1]).all()
    assert 0 < np.mean(mixed[:, 0] == mixed[:, 1]) < 0.3
    assert records.shape == mixed.shape == (200, 2)


def test_more_records_than_there_are_is_refused_and_sites_have_their_own() -> None:
    with pytest.raises(ConfigurationError, match="need more than the"):
        inverted_line(TABLE, 8, 100, 0)
    data = Examples(np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6))
    np.testing.assert_array_equal(true_part(data, 2, 1).y, [2, 3])


def test_the_average_over_sites_is_that_of_all_their_records() -> None:
    """So a sum over eight sites of one record is read no worse than one site's batch of eight."""
    model = build_model(model_spec("mlp", (30,), (8,), 2), 0)
    data = Examples(RNG.normal(size=(8, 30)).astype(np.float32), RNG.integers(0, 2, 8))
    apart = np.mean([loss_gradient(model, true_part(data, 1, site), CPU) for site in range(8)], axis=0)
    np.testing.assert_allclose(apart, loss_gradient(model, data, CPU), atol=1e-6)


def test_every_target_has_a_name_and_a_model_of_its_own_and_is_in_the_help() -> None:
    assert tuple(BY_KEY) == cli.TARGETS
    assert len(BY_KEY) == len(TARGETS)
