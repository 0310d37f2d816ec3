"""The numbers of a ranking: exact sketches, the query's scale, the derived bound (docs/protocol.md 8)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protocol.arithmetic.fixed_point import decode, encode
from protocol.parameters import MIN_SKETCH_LENGTH
from protocol.ranking import LONGEST, error_bound, query_scale, ranking_parameters, vector_length


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
