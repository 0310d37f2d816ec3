"""Every rule's plain rounds against the formulas: own weights, class counts, selection, probes, server optimisers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import model_vector
from client_agent.learning.models import build_model
from client_agent.learning.trainer import loss_gradient
from harness.datasets.site_data import SiteData
from harness.engine.history import RoundKind, RunEnd, RunHistory
from harness.engine.run_state import Attendance, Progress
from protocol.errors import Clause, ConfigurationError
from protocol.messages.control import RuleName, Study
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from tests.kit.small_runs import CPU, MODEL, NAMES, raw_updates, small_sites, small_study
from tests.unlimited import run_plain

SIZES = (40, 20, 30, 40, 10)
GRID = 2


def sites(sizes: tuple[int, ...] = SIZES, flipped: str = "") -> tuple[SiteData, ...]:
    return small_sites(sizes, turn=0.1, flipped=flipped)


def study(rule: RuleName, rounds: int = 3, grid: int = GRID, **options: Any) -> Study:
    return small_study(rule, rounds, grid=grid, **options)


def start() -> np.ndarray:
    return model_vector(build_model(MODEL, 9))


def kinds(history: RunHistory) -> list[str]:
    return [record.kind.value for record in history.rounds]


# one float32 rounding of an average below 4, one of the step, one of the difference: below 2^-21 per round
ROUNDING = 2.0**-21
# sums of five float64 weights of at most 1, each made by fewer than eight operations
WEIGHTS_ROUNDING = 5 * 8 * 2.0**-53


def test_by_samples_every_site_counts_as_its_number_of_samples() -> None:
    history = run_plain(study(RuleName.FEDAVG_BY_SAMPLES, rounds=1), sites())
    weights = np.array([1.0, 0.5, 0.75, 1.0, 0.5])  # 10 of 40 is below the smallest weight, 1/2
    expected = start() - 0.5 * weights @ raw_updates(start(), 1, sites()) / weights.sum()
    np.testing.assert_allclose(history.final_model, expected, rtol=0, atol=ROUNDING)
    record = history.rounds[0]
    assert record.sum_of_weights == weights.sum()
    assert [weight.numerator for weight in record.handed_out] == [GRID] * 4


def test_by_samples_the_study_may_say_which_number_weighs_1() -> None:
    history = run_plain(study(RuleName.FEDAVG_BY_SAMPLES, rounds=1, largest_count=30), sites())
    assert history.rounds[0].sum_of_weights == pytest.approx(1 + 2 / 3 + 1 + 1 + 0.5, rel=0, abs=WEIGHTS_ROUNDING)


def test_wfedavg_counts_the_classes_first_and_weighs_by_them() -> None:
    history = run_plain(study(RuleName.WFEDAVG, grid=4), sites(), policy=SitePolicy(largest_share=1.0))
    assert kinds(history) == ["counted", "released", "released", "released"]
    counts = np.array([np.bincount(site.train.y, minlength=2) for site in sites()])
    first = history.rounds[0]
    assert first.class_totals == tuple(counts.sum(axis=0))
    assert first.took_part == NAMES[1:]
    assert first.model_norm == np.linalg.norm(start().astype(np.float64))
    P = counts.sum(axis=0) / counts.sum()
    p = counts / counts.sum(axis=1, keepdims=True)
    weights = np.maximum(0.25, 1 / (p**2 @ P) / np.sum(1 / P))
    expected = start()
    for number in (2, 3, 4):
        updates = raw_updates(expected.astype(np.float32), number, sites())
        expected = expected - 0.5 * weights @ updates / weights.sum()
    # three rounds, each carried on with a slope below 1 per step
    np.testing.assert_allclose(history.final_model, expected, rtol=0, atol=6 * ROUNDING)
    assert history.rounds[1].sum_of_weights == pytest.approx(weights.sum(), rel=0, abs=WEIGHTS_ROUNDING)


def test_a_round_of_counts_is_repeated_when_it_is_skipped_and_does_not_count() -> None:
    away = Attendance(missed=frozenset({(1, "near"), (1, "far")}))
    history = run_plain(study(RuleName.WFEDAVG, rounds=2), sites(), attendance=away)
    assert kinds(history) == ["skipped", "counted", "released", "released"]
    assert history.end is RunEnd.COMPLETED


def test_counts_that_never_come_together_end_the_shared_part() -> None:
    missed = frozenset((number, name) for number in range(1, 9) for name in ("near", "far"))
    history = run_plain(study(RuleName.WFEDAVG, rounds=3), sites(), attendance=Attendance(missed=missed))
    assert kinds(history) == ["skipped"] * 3 + ["alone"] * 3
    assert history.end is RunEnd.LOCAL_ONLY
    assert "class counts could not be summed in 3 rounds" in history.reason


def test_a_class_that_no_site_has_is_refused_after_the_count() -> None:
    one_class = tuple(
        replace(site, train=Examples(site.train.X, np.zeros(len(site.train), np.int64))) for site in sites()
    )
    with pytest.raises(ConfigurationError, match="classes \\[1\\]"):
        run_plain(study(RuleName.WFEDAVG), one_class)


def test_a_site_that_would_weigh_too_much_declines_and_is_not_listed_again() -> None:
    history = run_plain(study(RuleName.FEDAVG_BY_SAMPLES, grid=4), sites((40, 12, 12, 40, 12)))
    # m = 3, so two others are sure, with 1/4 each at least: 1 of 1 + 2/4 is 66 %, 0.3 of 0.3 + 2/4 is 38 %
    assert [record.declined for record in history.rounds] == [("far",), (), ()]
    assert kinds(history) == ["released"] * 3
    assert [weight.site for weight in history.rounds[1].handed_out] == ["near", "middle", "other"]
    assert history.rounds[0].took_part == ("near", "middle", "other")


def test_too_many_that_decline_end_the_shared_part_with_their_reason() -> None:
    history = run_plain(study(RuleName.FEDAVG_BY_SAMPLES, grid=32), sites())
    assert kinds(history) == ["skipped", "alone", "alone"]
    assert history.rounds[0].declined == NAMES[1:]
    assert history.end is RunEnd.LOCAL_ONLY
    assert history.reason.startswith("0 contributors are willing: largest_share")
    assert history.ended_by is Clause.LARGEST_SHARE


def test_fedadam_keeps_its_moments_from_round_to_round() -> None:
    kept: list[Progress] = []
    options: dict[str, Any] = {"adaptivity": 0.25, "server_momentum": 0.5, "second_moment_decay": 0.75}
    history = run_plain(study(RuleName.FEDADAM, **options), sites(), after_round=kept.append)
    x, m, v = start().astype(np.float64), np.zeros(8), np.full(8, 0.25**2)
    for number, progress in enumerate(kept, start=1):
        u = raw_updates(x.astype(np.float32), number, sites()).mean(axis=0)
        m, v = 0.5 * m + 0.5 * u, 0.75 * v + 0.25 * u**2
        x = x - 0.5 * m / (np.sqrt(v) + 0.25)
        # tau = 1/4 amplifies a rounding by at most 4 per round, three rounds
        np.testing.assert_allclose(progress.state.vector, np.concatenate([x, m, v]), rtol=0, atol=64 * ROUNDING)
    assert history.final_model.shape == (8,)
    np.testing.assert_array_equal(history.final_model, kept[-1].state.vector[:8])


@pytest.mark.parametrize("rule", [RuleName.FEDADAM, RuleName.WFEDAVG])
def test_a_run_goes_on_from_any_round_to_the_same_bits(rule: RuleName) -> None:
    kept: list[Progress] = []
    whole = run_plain(study(rule), sites(), after_round=kept.append)
    for progress in kept:
        again = run_plain(study(rule), sites(), resume=progress)
        assert again.rounds == whole.rounds
        np.testing.assert_array_equal(again.final_model, whole.final_model)


def test_multi_krum_leaves_out_the_site_with_flipped_labels() -> None:
    given = sites((40,) * 5, flipped="far")
    history = run_plain(study(RuleName.MULTI_KRUM, rounds=1), given)
    record = history.rounds[0]
    assert record.not_selected == ("far",)
    assert record.took_part == ("near", "middle", "other")
    assert record.failed_check == ()
    updates = raw_updates(start(), 1, given)
    found = {(pair.first, pair.second): pair.value for pair in record.pairs}
    expected = {
        (NAMES[i], NAMES[j]): float(np.linalg.norm(updates[i] - updates[j])) for j in range(5) for i in range(j)
    }
    assert found == pytest.approx(expected, rel=1e-9)
    kept = [row for name, row in zip(NAMES, updates, strict=True) if name != "far"]
    np.testing.assert_allclose(history.final_model, start() - 0.5 * np.mean(kept, axis=0), rtol=0, atol=ROUNDING)


def test_a_selection_may_leave_out_the_same_site_in_every_round() -> None:
    history = run_plain(study(RuleName.MULTI_KRUM, rounds=4), sites((40,) * 5, flipped="far"))
    assert kinds(history) == ["released"] * 4
    assert all(record.not_selected == ("far",) for record in history.rounds)


def test_influence_follows_the_decrease_of_the_validation_loss() -> None:
    given = sites((40,) * 5, flipped="far")
    history = run_plain(study(RuleName.INFLUENCE, rounds=1, grid=32), given)
    model = build_model(MODEL, 9)
    probe = loss_gradient(model, given[0].validation, CPU).astype(np.float64)
    products = raw_updates(start(), 1, given) @ probe
    record = history.rounds[0]
    assert [one.site for one in record.inner_products] == list(NAMES[1:])
    # float64 sums of 8 products
    assert [one.value for one in record.inner_products] == pytest.approx(list(products[1:]), rel=1e-12)
    targets = np.maximum(products[1:], 0) / products.max()
    assert [one.value for one in record.alphas] == pytest.approx(list(0.5 + 0.5 * targets), rel=1e-12)
    assert record.alphas[2].value == 0.5


def test_the_probe_is_clipped_like_an_update() -> None:
    given = sites((40,) * 5)
    wide = run_plain(study(RuleName.INFLUENCE, rounds=1, grid=32), given)
    narrow_study = study(RuleName.INFLUENCE, rounds=1, grid=32)
    narrow = narrow_study.parameters.model_copy(update={"clip_norm": 2.0**-4})
    clipped = run_plain(narrow_study.model_copy(update={"parameters": narrow}), given)
    products = [one.value for one in clipped.rounds[0].inner_products]
    assert clipped.rounds[0].clipped_share == 1.0
    # both vectors have at most the clip norm
    assert max(products) <= 2.0**-8 < min(one.value for one in wide.rounds[0].inner_products)


def test_influence_without_validation_data_is_refused_before_round_1() -> None:
    requester, *others = sites()
    blind = replace(requester, validation=Examples(requester.train.X[:0], requester.train.y[:0]))
    with pytest.raises(ConfigurationError, match="'requester' has no validation example"):
        run_plain(study(RuleName.INFLUENCE), (blind, *others))


def test_updates_beyond_the_norm_bound_fail_a_check() -> None:
    given = sites((40,) * 5)
    norms = np.linalg.norm(raw_updates(start(), 1, given), axis=1)
    longest = NAMES[1 + int(np.argmax(norms[1:]))]
    bound = float(np.sort(norms[1:])[-2:].mean())
    history = run_plain(study(RuleName.FEDAVG, rounds=1, norm_bound=bound), given)
    record = history.rounds[0]
    assert [one.value for one in record.norms] == pytest.approx(list(norms[1:]), rel=1e-9)
    assert record.distances == ()
    assert record.failed_check == (longest,)
    assert longest not in record.took_part
    kept = [row for name, row in zip(NAMES, raw_updates(start(), 1, given), strict=True) if name != longest]
    np.testing.assert_allclose(history.final_model, start() - 0.5 * np.mean(kept, axis=0), rtol=0, atol=ROUNDING)


def test_a_bound_that_nobody_meets_skips_the_rounds_and_says_who_failed() -> None:
    history = run_plain(study(RuleName.FEDAVG, rounds=1, norm_bound=1e-6), sites())
    assert kinds(history) == ["skipped"]
    assert history.rounds[0].failed_check == NAMES[1:]
    assert len(history.rounds[0].norms) == 4


@pytest.mark.parametrize(
    ("rule", "options", "opened"),
    [
        (RuleName.WEIGHT_EROSION, {}, Needs.DISTANCES),
        (RuleName.FEDAVG, {"norm_bound": 1.0}, Needs.NORMS),
        (RuleName.MULTI_KRUM, {}, Needs.PAIRS),
        (RuleName.INFLUENCE, {}, Needs.INNER_PRODUCTS),
    ],
)
def test_what_a_sites_policy_forbids_to_open_is_refused_before_round_1(
    rule: RuleName, options: dict[str, Any], opened: Needs
) -> None:
    forbidding = SitePolicy(may_open=tuple(needs for needs in SitePolicy().may_open if needs is not opened))
    seen: list[Progress] = []
    with pytest.raises(ConfigurationError, match=f"site 'near' refuses .*opens {opened.value}"):
        run_plain(study(rule, **options), sites(), policy=forbidding, after_round=seen.append)
    assert seen == []
    assert run_plain(study(RuleName.FEDAVG), sites(), policy=SitePolicy(may_open=())).end is RunEnd.COMPLETED


def test_too_few_sites_for_multi_krum_are_refused_before_round_1() -> None:
    with pytest.raises(ConfigurationError, match="needs 7 sites"):
        run_plain(study(RuleName.MULTI_KRUM, byzantine=2), sites())


@pytest.mark.parametrize("rule", list(RuleName))
def test_every_rule_goes_on_alone_when_it_must(rule: RuleName) -> None:
    missed = frozenset((number, name) for number in range(1, 9) for name in NAMES[1:])
    history = run_plain(study(rule, rounds=2), sites(), policy=SitePolicy(least_contributors=4))
    assert kinds(history)[-1] == RoundKind.ALONE.value
    assert np.isfinite(history.final_model).all()
    away = run_plain(study(rule, rounds=2), sites(), attendance=Attendance(missed=missed))
    assert "released" not in kinds(away)
