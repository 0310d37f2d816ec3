"""The bound for server optimisers, against what it bounds: two runs of the optimiser on averages that differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.demo.studies import BREAST_CANCER, study_of
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, RuleSpec
from protocol.parameters import StudyParameters
from protocol.shared_model import apply_aggregate, initial_state
from tests.kit.bounds.adaptive_bound import AdaptiveRound, adaptive_difference, adaptive_rounds
from tests.kit.bounds.error_bound import bound_of_run
from tests.kit.bounds.regression_facts import RegressionFacts, RoundFacts, average_error
from tests.unlimited import run_plain

D = 9
ADAPTIVE = (RuleName.FEDADAGRAD, RuleName.FEDADAM, RuleName.FEDYOGI)
PARAMETERS = StudyParameters(dimension=D, clip_norm=1.0, weight_grid=8, least_contributors=3)
# no slope: the averages differ by what encoding does, not by what the models do
MODEL = RegressionFacts(classes=3, inputs=2, batch_size=4, longest_row=0.0, l2=0.0)
FACTS = RoundFacts(
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
    allowed = average_error(FACTS, MODEL, PARAMETERS, norm=1.0)
    trajectory, facts, differences = [], [], []
    for _ in range(6):
        drawn = random.normal(size=D)
        averaged = (drawn / 2 / np.linalg.norm(drawn)).astype(np.float32)
        error = random.normal(size=D)
        moved = (averaged + 0.9 * allowed * error / np.linalg.norm(error)).astype(np.float32)
        facts.append(replace(FACTS, model_norm=float(np.linalg.norm(plain[:D]))))
        after = apply_aggregate(plain, averaged, chosen, STEP)
        secure = apply_aggregate(secure, moved, chosen, STEP)
        trajectory.append(facts_of(plain, averaged, after, chosen))
        plain = after
        differences.append(float(np.linalg.norm(plain[:D].astype(np.float64) - secure[:D])))
        bound = adaptive_difference(facts, trajectory, MODEL, PARAMETERS, chosen, STEP)
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
    bound = adaptive_difference([FACTS], [taken], MODEL, PARAMETERS, chosen, STEP)
    far = replace(taken, margins=np.ones(D))
    without_jump = adaptive_difference([FACTS], [far], MODEL, PARAMETERS, chosen, STEP)
    assert without_jump < difference <= bound


@pytest.mark.parametrize("rule", ADAPTIVE)
def test_a_small_tau_makes_the_bound_large(rule: RuleName) -> None:
    federation = breast_cancer_five_hospitals(0)
    bounds = []
    for adaptivity in (1.0, 0.1, 0.001):
        study = study_of(replace(BREAST_CANCER, rounds=3), federation, rule, "0" * 64, 0)
        study = study.model_copy(update={"rule": spec(rule, adaptivity)})
        bounds.append(bound_of_run(run_plain(study, federation.sites), study, federation.sites))
    assert 0 < bounds[0] < bounds[1] < bounds[2]


def test_a_bound_beyond_every_number_is_infinite() -> None:
    chosen = spec(RuleName.FEDADAGRAD, 1e-300)
    taken = AdaptiveRound(1e-300, 1.0, 1.0, 1.0, 1.0, np.ones(D), np.ones(D))
    assert adaptive_difference([FACTS] * 3, [taken] * 3, MODEL, PARAMETERS, chosen, STEP) == np.inf


def test_the_history_of_other_sites_is_refused() -> None:
    federation, other = breast_cancer_five_hospitals(0), breast_cancer_five_hospitals(1)
    study = study_of(replace(BREAST_CANCER, rounds=2), federation, RuleName.FEDADAM, "0" * 64, 0)
    history = run_plain(study, federation.sites)
    assert len(adaptive_rounds(history, study, federation.sites)) == 2
    with pytest.raises(ConfigurationError, match="plain run's own steps"):
        adaptive_rounds(history, study, other.sites)
