"""The models that sites are ranked by, and the examples that the requester judges them on."""

from __future__ import annotations

import numpy as np
import pytest

from client_agent.learning.data import Examples
from client_agent.learning.ridge import JudgedOn, design, judging_form, ridge_model, targets
from protocol.errors import UnusableUpdate
from protocol.ranking import predictor


def examples(seed: int, count: int = 30) -> Examples:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 2, 2)).astype(np.float32)
    return Examples(X, (X[:, 0, 0] > 0).astype(np.int64))


def test_features_are_flattened_with_a_constant_behind_them() -> None:
    rows = design(examples(1))
    assert rows.shape == (30, 5)
    assert (rows[:, -1] == 1).all()
    np.testing.assert_array_equal(targets(examples(1), 3).sum(axis=1), 1)


def test_no_model_nearby_has_a_smaller_penalised_loss() -> None:
    of, penalty = examples(2), 0.05
    X, Y = design(of), targets(of, 2)

    def cost(W: np.ndarray) -> float:
        return float(np.sum((X @ W - Y) ** 2) / len(X) + penalty * np.sum(W**2))

    best = ridge_model(of, 2, penalty)
    rng = np.random.default_rng(3)
    assert all(cost(best + 1e-3 * rng.normal(size=best.shape)) > cost(best) for _ in range(20))


@pytest.mark.parametrize(
    ("X", "text"),
    [
        (np.full((4, 2), 1e9), "rounding hides the penalty"),
        (np.full((4, 2), 1e200), "numbers that overflow"),
        (np.array([[np.nan, 0.0], [1.0, 2.0]]), "hold NaN"),
    ],
)
def test_where_there_is_no_model_it_is_said_what_to_do(X: np.ndarray, text: str) -> None:
    """Two columns of 1e9: X'X / n is 1e18, whose rounding unit of 128 hides every penalty up to 1."""
    of = Examples(X, np.arange(len(X)) % 2)
    for penalty in (1e-4, 1.0):
        with pytest.raises(UnusableUpdate, match=text) as raised:
            ridge_model(of, 2, penalty)
        assert "bring the features to a common scale" in raised.value.detail


@pytest.mark.parametrize(
    ("validation", "expected"),
    [(examples(5), JudgedOn.VALIDATION), (None, JudgedOn.TRAINING), (examples(5, 0), JudgedOn.TRAINING)],
)
def test_validation_examples_judge_where_there_are_some(validation: Examples | None, expected: JudgedOn) -> None:
    train = examples(4)
    judging = judging_form(train, validation, 2)
    assert judging.judged_on is expected
    judged = train if expected is JudgedOn.TRAINING or validation is None else validation
    W = ridge_model(train, 2, 0.01)
    plain = float(np.mean(np.sum((design(judged) @ W - targets(judged, 2)) ** 2, axis=1)))
    assert judging.form.loss(predictor(W)) == pytest.approx(plain, rel=1e-12)
