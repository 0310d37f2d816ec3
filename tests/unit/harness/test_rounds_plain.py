"""The plain run against the formulas, and every way a round or a run can end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import model_vector
from client_agent.learning.models import build_model
from client_agent.study.plain_words import RULE_NAMES
from harness.datasets.bundled import breast_cancer_five_hospitals, digits_sites
from harness.demo.studies import BREAST_CANCER, DIGITS, study_of
from harness.engine.history import RoundKind, RunEnd, RunHistory, alpha_series, distance_series
from harness.engine.run_state import Attendance, Progress
from protocol.errors import Clause, ConfigurationError
from protocol.messages.control import RuleName, Study, TrainingSpec
from protocol.policy.site_policy import SitePolicy
from tests.kit.small_runs import NAMES, raw_updates, small_sites, small_study
from tests.unlimited import run_plain


def study(rule: RuleName = RuleName.WEIGHT_EROSION, rounds: int = 6, clip_norm: float = 1.0, **options: Any) -> Study:
    return small_study(rule, rounds, clip_norm=clip_norm, **options)


@dataclass(frozen=True)
class ByHand:
    """The expected result of one round."""

    vector: np.ndarray
    alpha: dict[str, float]
    distance: dict[str, float]


def by_hand(of: Study, models: list[np.ndarray], same_round: bool = False) -> list[ByHand]:
    """Weight Erosion straight from the paper, with clipping, grid and lag; ``models`` are those before each round."""
    alpha = dict.fromkeys(NAMES[1:], 1.0)
    rounds = []
    for r, vector in enumerate(models, start=1):
        updates = {
            name: g * min(1.0, of.parameters.clip_norm / float(np.linalg.norm(g)))
            for name, g in zip(NAMES, raw_updates(vector, r, small_sites()), strict=True)
        }
        own = updates.pop("requester")
        distance = {name: float(np.linalg.norm(g - own)) for name, g in updates.items()}
        used = {name: round(32 * a) / 32 for name, a in alpha.items()}
        for name in alpha:
            passes = (r - 1) * 16 // 40
            loss = (1 + of.rule.size_penalty * passes) * of.rule.distance_penalty
            alpha[name] = max(0.0, alpha[name] - loss * distance[name] / float(np.linalg.norm(own)))
        if same_round:
            used = {name: round(32 * a) / 32 for name, a in alpha.items()}
        total = own + sum(used[name] * g for name, g in updates.items())
        after = vector - np.float32(0.5) * (total / (1 + sum(used.values()))).astype(np.float32)
        rounds.append(ByHand(after, dict(alpha), distance))
    return rounds


@pytest.mark.parametrize("clip_norm", [0.25, 4.0])
@pytest.mark.parametrize("same_round", [False, True])
def test_weight_erosion_is_the_papers(clip_norm: float, same_round: bool) -> None:
    of = study(clip_norm=clip_norm, distance_penalty=0.04, size_penalty=0.3)
    kept: list[Progress] = []
    erosion = "same_round" if same_round else "next_round"
    history = run_plain(of, small_sites(), erosion_applies=erosion, after_round=kept.append)
    models = [model_vector(build_model(of.model, 9)), *(progress.state.vector for progress in kept)]
    assert history.end is RunEnd.COMPLETED
    for record, found, expected in zip(history.rounds, models[1:], by_hand(of, models[:-1], same_round), strict=True):
        # fewer than 2^8 float64 operations per round on numbers below 2^2, six rounds: 6 * 2^8 * 2^-51 < 2^-40
        assert {a.site: a.value for a in record.alphas} == pytest.approx(expected.alpha, rel=0, abs=2.0**-40)
        assert {d.site: d.value for d in record.distances} == pytest.approx(expected.distance, rel=0, abs=2.0**-40)
        assert record.took_part == NAMES[1:]
        # averages below 4 so close round to float32 at most 2^-22 apart; half of that, and the subtraction's rounding
        np.testing.assert_allclose(found, expected.vector, rtol=0, atol=2.0**-22)
    clipped = [record.clipped_share for record in history.rounds]
    assert (max(clipped) == 0.0) if clip_norm == 4.0 else (min(clipped) > 0.0)


def test_weights_handed_out_lag_one_round_and_lie_on_the_grid() -> None:
    history = run_plain(study(distance_penalty=0.04), small_sites())
    before = dict.fromkeys(NAMES[1:], 1.0)
    for record in history.rounds:
        assert {w.site: w.numerator for w in record.handed_out} == {n: round(32 * a) for n, a in before.items()}
        before = {a.site: a.value for a in record.alphas}
    last = history.rounds[-1].alphas
    assert all(0 < alpha.value < 1 for alpha in last)


def test_runs_repeat_bit_for_bit() -> None:
    first, second = (run_plain(study(distance_penalty=0.04), small_sites()) for _ in range(2))
    assert first.rounds == second.rounds
    np.testing.assert_array_equal(first.final_model, second.final_model)


def test_fedavg_is_the_mean_of_the_clipped_updates() -> None:
    of = study(RuleName.FEDAVG, rounds=1, clip_norm=0.25)
    history = run_plain(of, small_sites())
    vector = model_vector(build_model(of.model, 9))
    raw = raw_updates(vector, 1, small_sites())
    clipped = [g * min(1.0, 0.25 / float(np.linalg.norm(g))) for g in raw]
    # one float32 rounding of a mean below 0.25, one of the step
    np.testing.assert_allclose(history.final_model, vector - 0.5 * np.mean(clipped, axis=0), rtol=0, atol=2.0**-24)
    record = history.rounds[0]
    assert record.distances == ()
    assert record.clipped_share == np.mean([np.linalg.norm(g) > 0.25 for g in raw])


def test_local_is_the_requester_alone_and_completes() -> None:
    of = study(RuleName.LOCAL, rounds=3, clip_norm=4.0)
    history = run_plain(of, small_sites())
    vector = model_vector(build_model(of.model, 9))
    for r in range(1, 4):
        vector = vector - np.float32(0.5) * raw_updates(vector, r, small_sites()[:1])[0].astype(np.float32)
    np.testing.assert_array_equal(history.final_model, vector)
    assert history.end is RunEnd.COMPLETED
    assert history.shared_rounds == 0
    assert all(record.kind is RoundKind.ALONE and record.handed_out == () for record in history.rounds)


def kinds(history: RunHistory) -> list[RoundKind]:
    return [record.kind for record in history.rounds]


def test_the_requester_goes_on_alone_once_the_policy_refuses() -> None:
    history = run_plain(study(rounds=12, distance_penalty=0.3, size_penalty=0.0), small_sites())
    assert history.end is RunEnd.LOCAL_ONLY
    shared = history.shared_rounds
    assert 0 < shared < 12
    assert kinds(history) == [RoundKind.RELEASED] * shared + [RoundKind.ALONE] * (12 - shared)
    assert history.rounds[shared].alphas == history.rounds[-1].alphas == history.rounds[shared - 1].alphas
    assert history.reason


def test_too_few_contributors_with_weight_end_the_shared_part() -> None:
    history = run_plain(
        study(rounds=12, distance_penalty=0.3, size_penalty=0.0), small_sites(), policy=SitePolicy(largest_share=1.0)
    )
    assert history.end is RunEnd.LOCAL_ONLY
    assert "contributors have weight left, at least 3" in history.reason


def test_a_stricter_site_policy_is_obeyed_from_the_first_round() -> None:
    history = run_plain(study(), small_sites(), policy=SitePolicy(least_contributors=4))
    assert history.end is RunEnd.LOCAL_ONLY
    assert history.shared_rounds == 0
    assert history.reason.startswith("enough_contributors")
    assert history.ended_by is Clause.ENOUGH_CONTRIBUTORS


def test_a_round_without_enough_contributors_is_skipped_without_erosion() -> None:
    missed = frozenset({(2, "near"), (2, "far"), (3, "near")})
    history = run_plain(study(distance_penalty=0.02), small_sites(), attendance=Attendance(missed=missed))
    assert kinds(history)[:4] == [RoundKind.RELEASED, RoundKind.SKIPPED, RoundKind.RELEASED, RoundKind.RELEASED]
    first, second, third = history.rounds[:3]
    assert second.alphas == first.alphas
    assert second.test_loss == first.test_loss
    assert third.took_part == ("middle", "far", "other")
    near = alpha_series(history)["near"]
    assert near[0] == near[1] == near[2] != near[3]
    assert distance_series(history)["near"][1:3] == (None, None)


def test_a_late_joiner_is_listed_from_its_round_at_the_median() -> None:
    history = run_plain(study(distance_penalty=0.04), small_sites(), attendance=Attendance(joins=(("near", 4),)))
    listed = [[w.site for w in record.handed_out] for record in history.rounds]
    assert listed[2] == ["middle", "far", "other"]
    assert listed[3] == ["near", "middle", "far", "other"]
    at_round_3 = sorted(alpha.value for alpha in history.rounds[2].alphas)
    assert history.rounds[3].handed_out[0].numerator == round(32 * at_round_3[1])
    assert alpha_series(history)["near"][:3] == (None, None, None)


def test_a_zero_requester_update_stops_the_run_at_the_local_optimum() -> None:
    requester, *others = small_sites()
    # one class, all-zero features: with the right bias the gradient underflows to exactly 0
    still = Examples(np.zeros((40, 3), np.float32), np.zeros(40, np.int64))
    fast = study(rounds=50, clip_norm=2.0**20, distance_penalty=0.0)
    fast = fast.model_copy(update={"training": TrainingSpec(batch_size=16, server_learning_rate=1000.0)})
    alike = tuple(replace(site, train=still) for site in others)
    history = run_plain(fast, (replace(requester, train=still), *alike))
    assert history.end is RunEnd.LOCAL_OPTIMUM
    assert "local optimum" in history.reason
    assert 0 < len(history.rounds) < 50


def test_a_study_without_a_seed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"study\.seed"):
        run_plain(study().model_copy(update={"seed": None}), small_sites())


@pytest.mark.parametrize("rule", list(RULE_NAMES))
def test_the_demo_studies_are_valid_and_of_the_promised_size(rule: RuleName) -> None:
    first = study_of(BREAST_CANCER, breast_cancer_five_hospitals(0), rule, "ab" * 32, 0)
    second = study_of(DIGITS, digits_sites(0), rule, "ab" * 32, 0)
    assert first.parameters.exact_distances
    assert second.parameters.dimension > 10_000
    assert not second.parameters.exact_distances
    assert (first.rounds, second.rounds) == (BREAST_CANCER.rounds, DIGITS.rounds)
    assert Study.parse(second.canonical()) == second


def test_the_digits_erode_the_far_sites_more() -> None:
    federation = digits_sites(1)
    settings = replace(DIGITS, rounds=6)
    history = run_plain(study_of(settings, federation, RuleName.WEIGHT_EROSION, "00" * 32, 1), federation.sites)
    alpha = {entry.site: entry.value for entry in history.rounds[-1].alphas}
    assert min(alpha["site-1"], alpha["site-2"]) > max(alpha["site-3"], alpha["site-4"])
    assert history.rounds[-1].validation_accuracy is not None
    assert history.test_accuracy == history.rounds[-1].test_accuracy
