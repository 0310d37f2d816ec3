"""Every site's isolation in a run in one process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.demo.studies import BREAST_CANCER, study_of
from harness.engine.history import RunHistory, isolation_series
from harness.engine.loop import run_plain, run_rounds
from harness.engine.run_state import Attendance, Conditions, Progress
from harness.engine.updates import PlainSum
from protocol.messages.control import RuleName
from protocol.policy.site_policy import SitePolicy

FEDERATION = breast_cancer_five_hospitals(0)
NAMES = [site.name for site in FEDERATION.sites]


def run(
    rule: RuleName, least: int = 4, rounds: int = 4, missed: frozenset[tuple[int, str]] = frozenset()
) -> RunHistory:
    study = study_of(BREAST_CANCER, FEDERATION, rule, "00" * 32, 0)
    parameters = study.parameters.model_copy(update={"least_contributors": least})
    changed = study.model_copy(update={"rounds": rounds, "parameters": parameters})
    limited = SitePolicy(least_isolation=0.5 if least == 4 else 0.0)  # under a limit everybody on the list is needed
    return run_plain(changed, FEDERATION.sites, policy=limited, attendance=Attendance(missed=missed))


def test_with_a_list_that_stays_and_everybody_needed_isolation_is_that_of_one_sum() -> None:
    for series in isolation_series(run(RuleName.FEDAVG)):
        assert series.values == pytest.approx([np.sqrt(3 / 4)] * 4, abs=1e-3)


def test_a_sum_that_may_do_without_a_site_isolates_less_than_one_that_needs_all() -> None:
    needed, spare = (isolation_series(run(RuleName.FEDAVG, least)) for least in (4, 3))
    for every, some in zip(needed, spare, strict=True):
        assert some.values[-1] is not None
        assert every.values[-1] is not None
        assert some.values[-1] < every.values[-1]


def test_a_site_that_was_away_works_with_the_sums_it_was_not_in() -> None:
    away = NAMES[2]
    history = run(RuleName.FEDAVG, 3, missed=frozenset({(2, away)}))
    series = {one.site: one.values for one in isolation_series(history)}
    assert series[away][1] is None
    assert all(value is not None for place, value in enumerate(series[away]) if place != 1)


def test_the_sums_that_isolation_looks_at_survive_in_the_state() -> None:
    seen: list[Progress] = []
    study = study_of(replace(BREAST_CANCER, rounds=3), FEDERATION, RuleName.WEIGHT_EROSION, "00" * 32, 0)
    whole = run_plain(study, FEDERATION.sites, after_round=seen.append)
    assert [row.round for row in seen[1].state.sums] == [1, 2]
    assert seen[1].state.kept.shape == (2, 5, study.model_dimension)
    resumed = run_plain(study, FEDERATION.sites, resume=replace(seen[1]))
    assert isolation_series(resumed) == isolation_series(whole)


def test_rounds_alone_have_none() -> None:
    assert all(value is None for one in isolation_series(run(RuleName.LOCAL)) for value in one.values)


def test_figures_that_nobody_asks_for_change_nothing_when_they_are_not_worked_out() -> None:
    study = study_of(replace(BREAST_CANCER, rounds=4), FEDERATION, RuleName.WEIGHT_EROSION, "00" * 32, 0)
    trusting = SitePolicy(least_isolation=0.0)
    seen: list[Progress] = []
    without, with_figures = (
        run_rounds(
            study,
            FEDERATION.sites,
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
