"""A run under CKKS against its plain twin, same seeds: whole studies in one process, within the derived bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.demo.studies import study_of
from harness.engine.history import RoundKind, RunHistory
from harness.engine.run_state import Attendance, Conditions, Progress
from protocol.messages.control import RuleName, Study, StudyProtection
from tests.kit.bounds.error_bound import bound_of_run
from tests.kit.bounds.regression_facts import UNIT, RoundFacts, encryption_error
from tests.kit.present import present
from tests.unlimited import LONG_BREAST_CANCER, run_plain, run_protected

pytest.importorskip("tenseal")
FEDERATION = breast_cancer_five_hospitals(0)
ROUNDS = 5
RULES = (RuleName.FEDAVG, RuleName.FEDAVG_BY_SAMPLES, RuleName.WFEDAVG)


def study(rule: RuleName) -> Study:
    made = study_of(replace(LONG_BREAST_CANCER, rounds=ROUNDS), FEDERATION, rule, "0" * 64, 0)
    # a coarse grid where sites weigh themselves, for their policy: every other weight may be the smallest
    parameters = made.parameters.model_copy(update={"weight_grid": 2 if rule.self_weighted else 32})
    return made.model_copy(update={"parameters": parameters, "protection": StudyProtection.CKKS})


def distance(one: RunHistory, other: RunHistory) -> float:
    return float(np.linalg.norm(one.final_model.astype(np.float64) - other.final_model))


@pytest.mark.parametrize("rule", RULES)
def test_models_agree_within_the_stated_error(rule: RuleName, capsys: pytest.CaptureFixture[str]) -> None:
    of = study(rule)
    plain, encrypted = run_plain(of, FEDERATION.sites), run_protected(of, FEDERATION.sites, correlation_source="dealer")
    assert (encrypted.protection, encrypted.end, encrypted.shared_rounds) == ("ckks", plain.end, ROUNDS)
    for ours, theirs in zip(encrypted.rounds, plain.rounds, strict=True):
        assert (ours.kind, ours.handed_out, ours.took_part) == (theirs.kind, theirs.handed_out, theirs.took_part)
        assert ours.class_totals == theirs.class_totals  # exact: they went through the share path
    bound = bound_of_run(plain, of, FEDERATION.sites)
    with capsys.disabled():
        print(f"\n{rule.value}: models differ by {distance(encrypted, plain):.2e}, bound {bound:.2e}")
    assert 0 < distance(encrypted, plain) <= bound
    # The bound says something: the model itself is far longer.
    assert bound < 0.01 * np.linalg.norm(plain.final_model)


@pytest.mark.parametrize("rule", [RuleName.FEDAVG, RuleName.FEDAVG_BY_SAMPLES])
def test_after_one_round_only_the_encryption_makes_a_difference(rule: RuleName) -> None:
    """Both trained the same bits from the same model. Left besides the encryption's error: each average is rounded
    to float32, and so are eta times it and the subtraction.
    """
    of = study(rule).model_copy(update={"rounds": 1})
    plain, encrypted = run_plain(of, FEDERATION.sites), run_protected(of, FEDERATION.sites)
    clip_norm, step = of.parameters.clip_norm, of.training.server_learning_rate
    weights = present(encrypted.rounds[0].sum_of_weights)
    facts = RoundFacts(5, weights, 1.0, 1.0, 1.0, 1.0, False, rounded=False)
    error = encryption_error(facts, of.parameters)
    norm = float(np.linalg.norm(plain.final_model))
    rounding = 2 * step * UNIT * clip_norm + 2 * UNIT * (2 * step * clip_norm + norm)
    assert 0 < distance(encrypted, plain) <= step * error + rounding
    assert error < 1e-5 * clip_norm


def test_ckks_is_no_farther_from_plain_than_the_grid_of_shares_may_be() -> None:
    """Both bounds hold the float32 training's own error; what CKKS adds to it is less than what shares add."""
    facts = RoundFacts(5, 5.0, 1.0, 1.0, 1.0, 1.0, False, rounded=False)
    parameters = study(RuleName.FEDAVG).parameters
    rounding = facts.sites * np.sqrt(parameters.dimension) / parameters.scale / facts.sum_of_weights
    assert encryption_error(facts, parameters) < rounding


def test_a_missed_round_and_a_late_joiner_change_nothing_about_that() -> None:
    of = study(RuleName.FEDAVG)
    away = Attendance(joins=(("oncology-centre", 2),), missed=frozenset({(3, "university-clinic")}))
    plain = run_plain(of, FEDERATION.sites, attendance=away)
    encrypted = run_protected(of, FEDERATION.sites, conditions=Conditions(attendance=away))
    assert [r.took_part for r in encrypted.rounds] == [r.took_part for r in plain.rounds]
    assert "university-clinic" not in encrypted.rounds[2].took_part
    assert 0 < distance(encrypted, plain) <= bound_of_run(plain, of, FEDERATION.sites)


def test_with_too_few_sites_a_round_is_skipped_and_the_model_stays() -> None:
    of = study(RuleName.FEDAVG)
    away = Attendance(missed=frozenset({(2, "university-clinic"), (2, "screening-centre")}))
    encrypted = run_protected(of, FEDERATION.sites, conditions=Conditions(attendance=away))
    assert [r.kind for r in encrypted.rounds].count(RoundKind.SKIPPED) == 1
    assert encrypted.rounds[1].model_norm == encrypted.rounds[0].model_norm


def test_a_resumed_run_goes_on_with_the_same_key() -> None:
    of, kept = study(RuleName.WFEDAVG), list[Progress]()
    whole = run_protected(of, FEDERATION.sites, correlation_source="dealer", after_round=kept.append)
    resumed = run_protected(of, FEDERATION.sites, correlation_source="dealer", resume=kept[2])
    assert len(resumed.rounds) == len(whole.rounds)
    # From the same state the two differ by fresh noise only, at most twice the bound.
    assert distance(resumed, whole) <= 2 * bound_of_run(run_plain(of, FEDERATION.sites), of, FEDERATION.sites)
