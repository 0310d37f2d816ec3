"""Penalties that a study can have and a site takes, and what a ridge regression tells at the floor.

What extreme penalties would tell are the attacks ``ranking-with-a-tiny-penalty`` and ``ranking-with-a-huge-penalty``.
"""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from client_agent.learning.ridge import ridge
from protocol.errors import PolicyRefusal
from protocol.messages.control import RankingSpec
from protocol.policy.site_policy import SitePolicy, check_study_allowed
from tests.unit.parties import study

RNG = np.random.default_rng(11)
N, CLASSES = 40, 2
X = np.hstack((RNG.integers(0, 2, (N, 3)), np.ones((N, 1)))).astype(float)
Y = np.eye(CLASSES)[RNG.integers(0, CLASSES, N)]
CELLS = X.T @ Y
LEAST, LARGEST = 1e-2, 1.0


def test_the_largest_penalty_does_not_show_cell_counts() -> None:
    assert (np.rint(N * LARGEST * ridge(X, Y, LARGEST)) != CELLS).any()


def own_feature(penalty: float) -> tuple[float, float]:
    """The coefficient of a feature that patient 0 alone has, and that patient's residual under the others' model."""
    rare = np.zeros((N, 1))
    rare[0] = 1
    without = ridge(X[1:], Y[1:], penalty)
    return float(ridge(np.hstack((X, rare)), Y, penalty)[-1, 0]), float((Y[0] - X[0] @ without)[0])


@pytest.mark.parametrize("penalty", [1e-4, 9.9e-3, 0.0, -1.0, float("nan")])
def test_a_site_refuses_a_smaller_penalty_whatever_study_is_put_before_it(penalty: float) -> None:
    """A study that some other program let through: the site's own policy has the same floor, and none goes below it."""
    willing = SitePolicy(may_rank=True)
    ranks = study("ab" * 32).model_copy(update={"ranking": RankingSpec()})
    check_study_allowed(ranks, willing)
    let_through = RankingSpec.model_construct(penalty=penalty, clip_norm=16.0)
    with pytest.raises(PolicyRefusal, match=r"ranking_penalty: .* at least 0\.01 is demanded"):
        check_study_allowed(ranks.model_copy(update={"ranking": let_through}), willing)
    with pytest.raises(ValidationError, match="least_ranking_penalty"):
        SitePolicy(may_rank=True, least_ranking_penalty=penalty)


def test_one_patient_in_a_hundred_is_half_hidden_at_the_floor() -> None:
    """The coefficient is the residual times 1 / (1 + n penalty), n = 100, but for the other features' share."""
    x = np.ones((100, 1))
    y = np.eye(CLASSES)[RNG.integers(0, CLASSES, 100)]
    rare = np.zeros((100, 1))
    rare[0] = 1
    fitted = ridge(np.hstack((x, rare)), y, LEAST)
    residual = y[0, 0] - fitted[0, 0]  # what the other features leave of this patient
    assert fitted[-1, 0] == pytest.approx(residual / (1 + 100 * LEAST), rel=1e-9)
    assert 1 / (1 + 100 * 1e-4) > 0.99


def test_within_the_bounds_it_is_a_part_of_the_residual_that_grows_as_the_penalty_falls() -> None:
    """1 / (1 + n penalty) of what is left once the other features' coefficients are fitted with it."""
    parts = [own_feature(penalty)[0] / own_feature(penalty)[1] for penalty in (LARGEST, 0.1, LEAST)]
    assert 0 < parts[0] < parts[1] < parts[2] < 0.8
