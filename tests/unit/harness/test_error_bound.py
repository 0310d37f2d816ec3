"""The bound between a secure and a plain model, against what it bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.demo.studies import BREAST_CANCER, study_of
from harness.engine.history import RoundKind
from harness.engine.run_state import Attendance
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, RuleSpec
from protocol.parameters import StudyParameters
from protocol.shared_model import apply_aggregate, initial_state
from tests.kit.bounds.adaptive_bound import AdaptiveRound, adaptive_difference, adaptive_rounds
from tests.kit.bounds.error_bound import bound_of_run, difference_bound
from tests.kit.bounds.regression_facts import RegressionFacts, RoundFacts, average_error, longest_row, smoothness
from tests.unlimited import run_plain

# --- error bound ------------------------------------------------------------------------------------------------------

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


def test_rounds_that_leave_the_model_alone_add_nothing() -> None:
    federation = breast_cancer_five_hospitals(0)
    away = Attendance(missed=frozenset({(2, site.name) for site in federation.contributors}))
    study = study_of(replace(BREAST_CANCER, rounds=3), federation, RuleName.FEDAVG, "0" * 64, 0)
    history = run_plain(study, federation.sites, attendance=away)
    assert [record.kind for record in history.rounds] == [RoundKind.RELEASED, RoundKind.SKIPPED, RoundKind.RELEASED]
    kept = replace(history, rounds=(history.rounds[0], history.rounds[2]))
    assert bound_of_run(history, study, federation.sites) == bound_of_run(kept, study, federation.sites)


# --- adaptive bound ---------------------------------------------------------------------------------------------------

D = 9
ADAPTIVE = (RuleName.FEDADAGRAD, RuleName.FEDADAM, RuleName.FEDYOGI)
ADAPTIVE_PARAMETERS = StudyParameters(dimension=D, clip_norm=1.0, weight_grid=8, least_contributors=3)
# no slope: the averages differ by what encoding does, not by what the models do
ADAPTIVE_MODEL = RegressionFacts(classes=3, inputs=2, batch_size=4, longest_row=0.0, l2=0.0)
ADAPTIVE_FACTS = RoundFacts(
    sites=5, sum_of_weights=5.0, smoothness=0.0, mean_length=1.5, mean_square=2.5, model_norm=1.0, clipped=False
)
STEP = 0.25


def spec(rule: RuleName, adaptivity: float = 0.1) -> RuleSpec:
    return RuleSpec(name=rule, adaptivity=adaptivity)


def facts_of(before: np.ndarray, averaged: np.ndarray, after: np.ndarray, rule: RuleSpec) -> AdaptiveRound:
    """Written down from the definitions."""
    _, _, v = before.astype(np.float64).reshape(3, D)
    model, m, v_after = after.astype(np.float64).reshape(3, D)
    divisors = np.sqrt(v_after) + rule.adaptivity
    return AdaptiveRound(
        floor=divisors.min(),
        ratio=np.max(np.abs(m) / divisors),
        scale_norm=float(np.sqrt(v_after.sum())),
        step_norm=STEP * float(np.linalg.norm(m / divisors)),
        model_norm=float(np.linalg.norm(model)),
        scales=np.sqrt(v),
        margins=np.abs(np.abs(averaged) - np.sqrt(v)),
    )


@pytest.mark.parametrize("rule", ADAPTIVE)
@pytest.mark.parametrize("seed", range(5))
def test_two_runs_stay_within_the_bound(rule: RuleName, seed: int) -> None:
    random = np.random.default_rng(seed)
    chosen = spec(rule)
    model = (random.normal(size=D) / 6).astype(np.float32)
    plain = secure = initial_state(model, chosen)
    allowed = average_error(ADAPTIVE_FACTS, ADAPTIVE_MODEL, ADAPTIVE_PARAMETERS, norm=1.0)
    trajectory, facts, differences = [], [], []
    for _ in range(6):
        drawn = random.normal(size=D)
        averaged = (drawn / 2 / np.linalg.norm(drawn)).astype(np.float32)
        error = random.normal(size=D)
        moved = (averaged + 0.9 * allowed * error / np.linalg.norm(error)).astype(np.float32)
        facts.append(replace(ADAPTIVE_FACTS, model_norm=float(np.linalg.norm(plain[:D]))))
        after = apply_aggregate(plain, averaged, chosen, STEP)
        secure = apply_aggregate(secure, moved, chosen, STEP)
        trajectory.append(facts_of(plain, averaged, after, chosen))
        plain = after
        differences.append(float(np.linalg.norm(plain[:D].astype(np.float64) - secure[:D])))
        bound = adaptive_difference(facts, trajectory, ADAPTIVE_MODEL, ADAPTIVE_PARAMETERS, chosen, STEP)
        assert 0 < differences[-1] <= bound
    # it says something: far below the model's own length
    assert bound < 1e-2 * np.linalg.norm(plain[:D])


def test_yogi_may_end_on_either_side_of_the_jump() -> None:
    chosen = spec(RuleName.FEDYOGI)
    model = np.zeros(D, np.float32)
    start = initial_state(model, chosen)
    tau = np.float32(0.1)
    averages = [np.full(D, tau * np.float32(1 + side * 2.0**-20), np.float32) for side in (-1, 1)]
    below, above = (apply_aggregate(start, averaged, chosen, STEP) for averaged in averages)
    difference = float(np.linalg.norm(below[:D].astype(np.float64) - above[:D]))
    taken = facts_of(start, averages[0], below, chosen)
    bound = adaptive_difference([ADAPTIVE_FACTS], [taken], ADAPTIVE_MODEL, ADAPTIVE_PARAMETERS, chosen, STEP)
    far = replace(taken, margins=np.ones(D))
    without_jump = adaptive_difference([ADAPTIVE_FACTS], [far], ADAPTIVE_MODEL, ADAPTIVE_PARAMETERS, chosen, STEP)
    assert without_jump < difference <= bound


def test_the_history_of_other_sites_is_refused() -> None:
    federation, other = breast_cancer_five_hospitals(0), breast_cancer_five_hospitals(1)
    study = study_of(replace(BREAST_CANCER, rounds=2), federation, RuleName.FEDADAM, "0" * 64, 0)
    history = run_plain(study, federation.sites)
    assert len(adaptive_rounds(history, study, federation.sites)) == 2
    with pytest.raises(ConfigurationError, match="plain run's own steps"):
        adaptive_rounds(history, study, other.sites)
