"""What a requester would learn by an extreme penalty of its choice, and that a study cannot have one.

It may ask for any one coordinate of a site's model, since nobody can check its query (docs/threat_model.md).
"""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from client_agent.ridge import ridge
from protocol.wire.messages import RankingSpec

RNG = np.random.default_rng(11)
N, CLASSES = 40, 2
X = np.hstack((RNG.integers(0, 2, (N, 3)), np.ones((N, 1)))).astype(float)
Y = np.eye(CLASSES)[RNG.integers(0, CLASSES, N)]
CELLS = X.T @ Y
LEAST, LARGEST = 1e-4, 1.0


def refused(penalty: float) -> bool:
    try:
        RankingSpec(penalty=penalty)
    except ValidationError:
        return True
    return False


def test_a_huge_penalty_would_show_cell_counts() -> None:
    """W = X'Y / (n penalty) up to a relative ||X'X / n|| / penalty, at most 4e-6, which rounds away."""
    huge = 1e6
    np.testing.assert_array_equal(np.rint(N * huge * ridge(X, Y, huge)), CELLS)
    assert refused(huge)
    assert refused(1.01 * LARGEST)
    assert not refused(LARGEST)
    assert (np.rint(N * LARGEST * ridge(X, Y, LARGEST)) != CELLS).any()


def own_feature(penalty: float) -> tuple[float, float]:
    """The coefficient of a feature that patient 0 alone has, and that patient's residual under the others' model."""
    rare = np.zeros((N, 1))
    rare[0] = 1
    without = ridge(X[1:], Y[1:], penalty)
    return float(ridge(np.hstack((X, rare)), Y, penalty)[-1, 0]), float((Y[0] - X[0] @ without)[0])


def test_a_tiny_penalty_would_show_one_patients_residual() -> None:
    """Without a penalty the rare feature fits its patient exactly and leaves the others' model as it is.

    With one, W moves by at most the penalty over the least eigenvalue of X'X / n, which is above 0.01 here.
    """
    tiny = 1e-9
    coefficient, residual = own_feature(tiny)
    assert np.linalg.eigvalsh(X[1:].T @ X[1:] / N)[0] > 0.01
    assert coefficient == pytest.approx(residual, abs=1e-6)
    assert refused(tiny)
    assert refused(LEAST / 2)
    assert not refused(LEAST)


def test_within_the_bounds_it_is_a_part_of_the_residual_that_grows_as_the_penalty_falls() -> None:
    """1 / (1 + n penalty) of what is left once the other features' coefficients are fitted with it."""
    parts = [own_feature(penalty)[0] / own_feature(penalty)[1] for penalty in (LARGEST, RankingSpec().penalty, LEAST)]
    assert 0 < parts[0] < parts[1] < parts[2] < 1
