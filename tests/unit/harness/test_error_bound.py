"""The bound between a secure and a plain model, against what it bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.datasets.bundled import breast_cancer_five_hospitals, digits_sites
from harness.demo.studies import BREAST_CANCER, DIGITS, study_of
from harness.engine.history import RoundKind
from harness.engine.run_state import Attendance
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName
from protocol.parameters import StudyParameters
from tests.kit.bounds.error_bound import bound_of_run, difference_bound
from tests.kit.bounds.regression_facts import RegressionFacts, RoundFacts, average_error, longest_row, smoothness
from tests.unlimited import run_plain

PARAMETERS = StudyParameters(dimension=9, clip_norm=1.0, weight_grid=8, least_contributors=3)
MODEL = RegressionFacts(classes=3, inputs=2, batch_size=4, longest_row=2.0, l2=0.0)
FACTS = RoundFacts(
    sites=5, sum_of_weights=5.0, smoothness=1.0, mean_length=1.5, mean_square=2.5, model_norm=1.0, clipped=False
)


def test_one_round_is_encoding_plus_float32() -> None:
    bound = difference_bound([FACTS], MODEL, PARAMETERS, step=0.5)
    encoding = 0.5 * 5 * 3 / 2**21 / 5
    # float32's part: 0.5 * 2 * (about 30 u) + a few u, u = 2^-24
    assert encoding < bound < encoding + 64 * 2.0**-24


def test_rounds_add_up_when_the_step_is_small() -> None:
    one, ten = (difference_bound([FACTS] * n, MODEL, PARAMETERS, step=0.5) for n in (1, 10))
    # M grows by delta, which is below 1e-5 of it: in ten rounds by less than 1e-4
    assert ten == pytest.approx(10 * one, rel=1e-4)


def test_weights_that_sites_give_themselves_add_the_error_of_their_sum() -> None:
    listed, own = (
        average_error(replace(FACTS, self_weighted=own), MODEL, PARAMETERS, norm=1.0) for own in (False, True)
    )
    # five sites: one more ring unit each, over W = 5 less 5 / E; float64, of whose 53 bits the difference keeps 40
    assert own - listed == pytest.approx((5 * 4 / (5 - 5 / 2**21) - 5 * 3 / 5) / 2**21, rel=2.0**-40)


@pytest.mark.parametrize(
    ("facts", "growth"),
    [(replace(FACTS, smoothness=6.0), 2.0), (replace(FACTS, clipped=True), 1 + 0.5 * 2.0)],
)
def test_what_makes_errors_grow(facts: RoundFacts, growth: float) -> None:
    one, two = (difference_bound([facts] * n, MODEL, PARAMETERS, step=0.5) for n in (1, 2))
    # M grows by delta, which is below 1e-5 of it
    assert two == pytest.approx(one * (1 + growth), rel=1e-4)


def test_smoothness_bounds_the_hessian_of_the_average() -> None:
    rng = np.random.default_rng(3)
    batches = [(w, rng.normal(size=(6, 2)).astype(np.float32)) for w in (1.0, 0.25)]
    bound = smoothness(batches, l2=0.1)
    total = sum(w for w, _ in batches)
    for _ in range(20):
        theta = torch.tensor(rng.normal(size=9))

        def loss(theta: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            W, b = theta[:6].reshape(3, 2), theta[6:]
            parts = [
                w / total * torch.nn.functional.cross_entropy(torch.tensor(X, dtype=torch.float64) @ W.T + b, labels)
                for w, X in batches
            ]
            return sum(parts) + 0.05 * theta @ theta

        labels = torch.tensor(rng.integers(0, 3, size=6))
        hessian = torch.autograd.functional.hessian(lambda t, y=labels: loss(t, y), theta)
        # 1e-9: float64's rounding of eigenvalues of this size
        assert torch.linalg.eigvalsh(hessian).max().item() <= bound + 1e-9


def test_longest_row_counts_the_bias() -> None:
    assert longest_row(np.array([[3.0, 4.0], [0.0, 1.0]], dtype=np.float32)) == math.sqrt(26)


def test_bound_of_a_run_needs_a_linear_model() -> None:
    federation = digits_sites(0)
    study = study_of(replace(DIGITS, rounds=1), federation, RuleName.LOCAL, "0" * 64, 0)
    history = run_plain(study, federation.sites)
    with pytest.raises(ConfigurationError, match="linear model"):
        bound_of_run(history, study, federation.sites)


def test_bound_grows_with_the_rounds() -> None:
    federation = breast_cancer_five_hospitals(0)
    bounds = []
    for rounds in (2, 4):
        study = study_of(replace(BREAST_CANCER, rounds=rounds), federation, RuleName.FEDAVG, "0" * 64, 0)
        bounds.append(bound_of_run(run_plain(study, federation.sites), study, federation.sites))
    assert 0 < bounds[0] < bounds[1]


def test_rounds_that_leave_the_model_alone_add_nothing() -> None:
    federation = breast_cancer_five_hospitals(0)
    away = Attendance(missed=frozenset({(2, site.name) for site in federation.contributors}))
    study = study_of(replace(BREAST_CANCER, rounds=3), federation, RuleName.FEDAVG, "0" * 64, 0)
    history = run_plain(study, federation.sites, attendance=away)
    assert [record.kind for record in history.rounds] == [RoundKind.RELEASED, RoundKind.SKIPPED, RoundKind.RELEASED]
    kept = replace(history, rounds=(history.rounds[0], history.rounds[2]))
    assert bound_of_run(history, study, federation.sites) == bound_of_run(kept, study, federation.sites)


@pytest.mark.parametrize("change", [{"class_weights": "inverse_frequency"}, {"update": "local_sgd"}])
def test_other_updates_have_no_bound(change: dict[str, str]) -> None:
    federation = breast_cancer_five_hospitals(0)
    study = study_of(replace(BREAST_CANCER, rounds=1), federation, RuleName.LOCAL, "0" * 64, 0)
    history = run_plain(study, federation.sites)
    other = study.model_copy(update={"training": study.training.model_copy(update=change)})
    with pytest.raises(ConfigurationError, match="linear model"):
        bound_of_run(history, other, federation.sites)
