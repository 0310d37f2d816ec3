"""The quadratic form of the requester's data and the vector of a site's model give the mean squared loss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import UnusableUpdate
from protocol.ranking import TransferLoss, predictor, quadratic_form, ranked, vector_length


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
