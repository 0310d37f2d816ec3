"""The numbers of a ranking: exact sketches, the query's scale, the derived bound, the loss (docs/protocol.md 8)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.arithmetic.fixed_point import decode, encode
from protocol.errors import UnusableUpdate
from protocol.parameters import MIN_SKETCH_LENGTH
from protocol.ranking import (
    LONGEST,
    TransferLoss,
    error_bound,
    predictor,
    quadratic_form,
    query_scale,
    ranked,
    ranking_parameters,
    vector_length,
)


@pytest.mark.parametrize("length", [1, MIN_SKETCH_LENGTH, MIN_SKETCH_LENGTH + 1, LONGEST])
def test_the_sketch_is_the_vector_itself_up_to_the_longest(length: int) -> None:
    parameters = ranking_parameters(length, 16.0, least_contributors=3, assumed_colluders=1)
    assert parameters.exact_distances
    assert parameters.sketched_length == parameters.dimension == length
    assert (parameters.weight_grid, parameters.least_contributors, parameters.assumed_colluders) == (1, 3, 1)


def test_a_vector_holds_the_upper_triangle_and_a_column_a_class() -> None:
    assert vector_length(3, 2) == 6 + 6


def test_the_query_is_as_long_as_a_vector_may_be_and_an_empty_form_stays_empty() -> None:
    assert query_scale(4.0, 16.0) * 4.0 == 16.0
    assert query_scale(0.0, 16.0) == 1.0


def test_rounding_both_vectors_moves_the_product_by_less_than_the_bound() -> None:
    """Worst seen over 50 draws of both roundings; the form's length and C are exact powers of two."""
    parameters, length = ranking_parameters(40, 4.0), 8.0
    rng = np.random.default_rng(4)
    form, model = rng.normal(size=(2, 40))
    form, model = form * length / np.linalg.norm(form), model * 3.5 / np.linalg.norm(model)
    scale = query_scale(length, 4.0)
    worst = 0.0
    for draw in range(50):
        query = decode(encode(form * scale, parameters, bytes([draw]) * 32), parameters)
        vector = decode(encode(model, parameters, bytes([draw, 1]) * 16), parameters)
        worst = max(worst, abs(float(query @ vector) / scale - float(form @ model)))
    assert 0 < worst < error_bound(parameters, length)
    assert error_bound(parameters, length) == pytest.approx(
        math.sqrt(40) * 2.0**-19 * (8.0 + math.sqrt(40) * 2.0**-19) * 2.0
    )


@given(n=st.integers(1, 30), p=st.integers(1, 7), k=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_inner_product_is_the_loss(n: int, p: int, k: int, seed: int):
    random = np.random.default_rng(seed)
    X, Y, W = random.normal(size=(n, p)), random.normal(size=(n, k)), random.normal(size=(p, k))
    form, vector = quadratic_form(X, Y), predictor(W)
    assert form.vector.shape == vector.shape == (vector_length(p, k),)
    direct = sum(float(np.sum((X[i] @ W - Y[i]) ** 2)) for i in range(n)) / n
    # Both ways sum the same products in another order: at most (length + n) roundings of the largest partial sum.
    size = float(np.abs(form.vector) @ np.abs(vector)) + form.constant
    assert abs(form.loss(vector) - direct) <= (vector.size + n + 10) * 2**-52 * size


def test_a_perfect_model_has_no_loss():
    X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    W = np.array([[2.0], [-1.0]])
    assert quadratic_form(X, X @ W).loss(predictor(W)) == 0.0


@pytest.mark.parametrize(
    ("X", "Y", "text"),
    [
        (np.zeros((0, 2)), np.zeros((0, 1)), "one row each"),
        (np.zeros((3, 2)), np.zeros((2, 1)), "one row each"),
        (np.zeros(3), np.zeros((3, 1)), "one row each"),
        (np.zeros((3, 2)), np.zeros(3), "one row each"),
        (np.array([[np.nan]]), np.zeros((1, 1)), "NaN"),
        (np.zeros((1, 1)), np.array([[np.inf]]), "NaN"),
        (np.full((2, 2), 1e200), np.zeros((2, 1)), "products overflow: scale the features"),
        (np.full((2, 2), 1e100), np.zeros((2, 1)), "products overflow: scale the features"),
        (np.zeros((1, 1)), np.array([[1e200]]), "products overflow: scale the features"),
    ],
)
def test_unusable_data_are_refused(X: np.ndarray, Y: np.ndarray, text: str):
    with pytest.raises(UnusableUpdate, match=text):
        quadratic_form(X, Y)


@pytest.mark.parametrize("W", [np.zeros(3), np.array([[np.nan]])])
def test_an_unusable_model_is_refused(W: np.ndarray):
    with pytest.raises(UnusableUpdate, match="linear model"):
        predictor(W)


def test_the_smallest_loss_comes_first_and_ties_go_by_name():
    losses = (TransferLoss("b", 0.5), TransferLoss("c", 0.1), TransferLoss("a", 0.5))
    assert [one.site for one in ranked(losses)] == ["c", "a", "b"]
