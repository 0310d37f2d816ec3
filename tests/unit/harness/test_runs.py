"""Runs in one process: measured rounds, isolation, a local finish, weights that move."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from client_agent.learning.study_file import FinishTable
from harness.datasets.bundled import breast_cancer_five_hospitals, digits_sites
from harness.demo.studies import BREAST_CANCER, DIGITS, study_of
from harness.engine.history import RoundKind, RunEnd, RunHistory, isolation_series
from harness.engine.loop import run_rounds, without_held_out
from harness.engine.protected_sum import secure_sum
from harness.engine.run_state import USUAL_POLICY, Attendance, Conditions, Progress
from harness.engine.updates import PlainSum, Summing
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, RuleSpec, Study
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from protocol.rules.fedavg import FedAvg
from protocol.rules.interface import Measured, RuleState, SiteFacts, standings
from tests.kit.bounds.missed_risk import SquaredErrors, squared_errors
from tests.kit.present import present
from tests.kit.small_runs import run_plain
from tests.unlimited import LONG_BREAST_CANCER

# --- measured rounds --------------------------------------------------------------------------------------------------

FEDERATION = digits_sites(0, 6)


def run(rounds: int, missed: tuple[int, ...] = (), policy: SitePolicy = USUAL_POLICY) -> RunHistory:
    of = study_of(replace(DIGITS, rounds=rounds, least_contributors=3), FEDERATION, RuleName.MALLOWS, "0" * 64, 0)
    rule = RuleSpec(name=RuleName.MALLOWS, measure_every=3)
    others = [site.name for site in FEDERATION.contributors[1:]]
    away = Attendance(missed=frozenset((number, name) for number in missed for name in others))
    return run_plain(of.model_copy(update={"rule": rule}), FEDERATION.sites, attendance=away, policy=policy)


def test_six_sites_with_default_policies_complete_without_a_decline() -> None:
    history = run(4)
    assert history.end is RunEnd.COMPLETED
    assert [record.kind.value for record in history.rounds] == ["measured", "released", "released"] * 2
    assert [record.declined for record in history.rounds] == [()] * 6
    assert [len(record.pairs) for record in history.rounds] == [15, 0, 0] * 2
    assert all(len(record.handed_out) >= 3 for record in history.rounds)
    assert history.rounds[0].model_norm != history.rounds[1].model_norm


def test_a_first_measurement_that_too_few_come_to_is_tried_three_times_and_a_later_one_after_the_next_sum() -> None:
    late = run(2, missed=(1,))
    assert [record.kind for record in late.rounds[:2]] == [RoundKind.SKIPPED, RoundKind.MEASURED]
    assert late.shared_rounds == 2
    never = run(2, missed=(1, 2, 3))
    assert never.end is RunEnd.LOCAL_ONLY
    assert "0 contributors have weight left" in never.reason
    again = run(4, missed=(4,))
    kinds = [record.kind.value for record in again.rounds]
    assert kinds == ["measured", "released", "released", "skipped", "released", "measured", "released"]


def test_sites_that_allow_no_pairs_are_heard_before_the_first_round() -> None:
    with pytest.raises(ConfigurationError, match="opens pairs of this site"):
        run(2, policy=SitePolicy(may_open=(Needs.NORMS,)))


# --- finishing --------------------------------------------------------------------------------------------------------

FINISHING = breast_cancer_five_hospitals(0)


@pytest.mark.parametrize("rule", [RuleName.FEDAVG, RuleName.LOCAL])
def test_the_finish_follows_the_rounds_of_every_rule(rule: RuleName) -> None:
    of = study_of(replace(LONG_BREAST_CANCER, rounds=2), FINISHING, rule, "0" * 64, 0)
    table, policy = FinishTable(held_out=0.3), SitePolicy(least_isolation=0.0)
    sites, held = without_held_out(FINISHING.sites, table, 0)
    assert len(sites[0].train) + len(held) == len(FINISHING.requester.train)
    shared = run_rounds(of, sites, conditions=Conditions(policy=policy))
    history = run_rounds(of, FINISHING.sites, conditions=Conditions(policy=policy, finish=table))
    assert history.rounds[:2] == shared.rounds
    assert [record.kind for record in history.rounds[2:]] == [RoundKind.FINISHED]
    assert "local finish with pull" in history.reason
    assert not np.array_equal(history.final_model, shared.final_model)
    assert history.rounds[-1].test_loss < shared.rounds[-1].test_loss


# --- isolation --------------------------------------------------------------------------------------------------------

ISOLATED = breast_cancer_five_hospitals(0)
NAMES = [site.name for site in ISOLATED.sites]


def isolated_run(
    rule: RuleName, least: int = 4, rounds: int = 4, missed: frozenset[tuple[int, str]] = frozenset()
) -> RunHistory:
    study = study_of(BREAST_CANCER, ISOLATED, rule, "00" * 32, 0)
    parameters = study.parameters.model_copy(update={"least_contributors": least})
    changed = study.model_copy(update={"rounds": rounds, "parameters": parameters})
    limited = SitePolicy(least_isolation=0.5 if least == 4 else 0.0)  # under a limit everybody on the list is needed
    return run_plain(changed, ISOLATED.sites, policy=limited, attendance=Attendance(missed=missed))


def test_with_a_list_that_stays_and_everybody_needed_isolation_is_that_of_one_sum() -> None:
    for values in isolation_series(isolated_run(RuleName.FEDAVG)).values():
        assert values == pytest.approx([np.sqrt(3 / 4)] * 4, abs=1e-3)


def test_a_sum_that_may_do_without_a_site_isolates_less_than_one_that_needs_all() -> None:
    needed, spare = (isolation_series(isolated_run(RuleName.FEDAVG, least)) for least in (4, 3))
    for site, values in needed.items():
        assert 0 < present(spare[site][-1]) < present(values[-1])


def test_a_site_that_was_away_works_with_the_sums_it_was_not_in() -> None:
    away = NAMES[2]
    history = isolated_run(RuleName.FEDAVG, 3, missed=frozenset({(2, away)}))
    series = isolation_series(history)
    assert series[away][1] is None
    assert all(value is not None for place, value in enumerate(series[away]) if place != 1)


def test_the_sums_that_isolation_looks_at_survive_in_the_state() -> None:
    seen: list[Progress] = []
    study = study_of(replace(BREAST_CANCER, rounds=3), ISOLATED, RuleName.WEIGHT_EROSION, "00" * 32, 0)
    whole = run_plain(study, ISOLATED.sites, after_round=seen.append)
    assert [row.round for row in seen[1].state.sums] == [1, 2]
    assert seen[1].state.kept.shape == (2, 5, study.model_dimension)
    resumed = run_plain(study, ISOLATED.sites, resume=replace(seen[1]))
    assert isolation_series(resumed) == isolation_series(whole)


def test_rounds_alone_have_none() -> None:
    assert {value for values in isolation_series(isolated_run(RuleName.LOCAL)).values() for value in values} == {None}


def test_figures_that_nobody_asks_for_change_nothing_when_they_are_not_worked_out() -> None:
    study = study_of(replace(BREAST_CANCER, rounds=4), ISOLATED, RuleName.WEIGHT_EROSION, "00" * 32, 0)
    trusting = SitePolicy(least_isolation=0.0)
    seen: list[Progress] = []
    without, with_figures = (
        run_rounds(
            study,
            ISOLATED.sites,
            PlainSum(),
            Conditions(policy=trusting, works_out_isolation=worked_out),
            protection="plain",
            after_round=seen.append,
        )
        for worked_out in (False, True)
    )
    np.testing.assert_array_equal(without.final_model, with_figures.final_model)
    for one, other in zip(with_figures.rounds, without.rounds, strict=True):
        assert (one.kind, one.test_loss, one.handed_out, one.alphas) == (
            other.kind,
            other.test_loss,
            other.handed_out,
            other.alphas,
        )
        assert other.isolation == ()
    assert all(one.isolation for one in with_figures.rounds)
    assert [len(one.state.sums) for one in seen] == [0] * 4 + [1, 2, 3, 4]


# --- moving weights ---------------------------------------------------------------------------------------------------

MOVING = breast_cancer_five_hospitals(0)
FACTORS = (0.9, 0.8, 0.7, 0.6)


@dataclass(frozen=True)
class Moving(FedAvg):
    """Each site's weight shrinks by a factor of its own in every round."""

    opens: Needs = Needs.PAIRS

    @property
    def needs(self) -> Needs:
        return self.opens

    def admit(self, state: RuleState, sites: tuple[SiteFacts, ...]) -> RuleState:
        return state if state.sites else RuleState(sites=standings(sites, 1.0))

    def apply(self, state: RuleState, measured: Measured) -> RuleState:
        moved = (
            site.model_copy(update={"alpha": site.alpha * by}) for site, by in zip(state.sites, FACTORS, strict=True)
        )
        return RuleState(sites=tuple(moved))


def history(of: Study, rule: Moving, summing: Summing) -> RunHistory:
    policy = SitePolicy(least_contributors=1, largest_share=1.0, least_isolation=0.0)
    return run_rounds(of, MOVING.sites, summing, Conditions(policy=policy, rule=rule), protection="")


@pytest.mark.parametrize("opens", [Needs.DISTANCES, Needs.NORMS, Needs.PAIRS, Needs.INNER_PRODUCTS])
def test_moving_weights_open_the_same_in_the_open_and_protected(opens: Needs) -> None:
    of = study_of(replace(LONG_BREAST_CANCER, rounds=3), MOVING, RuleName.FEDAVG, "0" * 64, 0)
    assert of.parameters.exact_distances
    rule = Moving(of.parameters.weight_grid, opens=opens)
    plain, secure = history(of, rule, PlainSum()), history(of, rule, secure_sum(of, MOVING.sites, "dealer"))
    lists = [[weight.numerator for weight in record.handed_out] for record in plain.rounds]
    assert lists[0] == [32] * 4
    assert len(set(lists[2])) == 4
    for record, twin in zip(plain.rounds, secure.rounds, strict=True):
        assert record.kind is twin.kind is RoundKind.RELEASED
        assert record.handed_out == twin.handed_out
        ours, theirs = (
            np.array([one.value for one in (*r.distances, *r.norms, *r.inner_products)] + [p.value for p in r.pairs])
            for r in (record, twin)
        )
        assert ours.size == (10 if opens is Needs.PAIRS else 4)
        np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(secure.final_model, plain.final_model, atol=1e-4)


# --- risk missed ------------------------------------------------------------------------------------------------------


def test_training_alone_and_plain_averaging_are_what_they_are_in_closed_form() -> None:
    """v_0 alone; (v_0 + 3 v_0) / 16 and three biases that point anywhere, 3 b / 16, averaged."""
    for bias in (0.0, 4.0):
        found = squared_errors(200, bias, draws=300)
        # a mean of 300 squared lengths over 200 directions has a standard error of sqrt(2 / 200 / 300) = .006
        assert found.alone == pytest.approx(1, abs=0.025)
        assert found.averaged == pytest.approx((4 + 3 * bias) / 16, rel=0.06)


def test_with_many_parameters_next_to_nothing_is_missed_and_with_few_it_is() -> None:
    many, few = (squared_errors(parameters, 0.0, draws=300).missed for parameters in (1000, 10))
    assert 0 <= many < 0.02
    assert 0.1 < few < 0.25
    assert squared_errors(1000, 4.0, draws=100).missed < -0.25


def test_the_rule_is_never_worse_than_training_alone_on_average() -> None:
    for bias in (0.0, 1.0, 4.0, 16.0):
        found = squared_errors(10, bias, draws=300)
        assert found.mallows < found.alone


def test_a_smaller_bias_factor_misses_less_and_the_seed_decides() -> None:
    careful, keen = (squared_errors(10, 0.0, bias_factor=factor, draws=200) for factor in (2.0, 1.0))
    assert keen.missed < careful.missed
    assert squared_errors(10, 0.0, draws=200) == careful
    assert SquaredErrors(0.5, 1.0, 0.75).missed == -0.25
