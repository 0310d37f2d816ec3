"""The list that the requester announces: the rule's, the last sum's, or none; its update stands in for the sites'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from client_agent.requester.state import Refused, RoundPlan, Settled
from client_agent.site.events import RoundEnd
from protocol.errors import Clause, ErrorCode
from protocol.messages.control import EndCause, StudyEndState
from protocol.policy.site_policy import SitePolicy
from protocol.rules.interface import Measured
from tests.kit.present import present
from tests.unit.client_agent.announced_rounds import MODEL
from tests.unit.client_agent.benches import RequesterBench, planned, requester_bench
from tests.unit.client_agent.federation import CONTRIBUTORS, REQUESTER, evidence, study

STUDY = study().model_copy(update={"rounds": 50})
GRID = STUDY.parameters.weight_grid


@contextmanager
def bench_of(folder: Path, policy: SitePolicy | None = None, **changes: object) -> Iterator[RequesterBench]:
    with requester_bench(folder, STUDY.model_copy(update=changes), MODEL, policy) as made:
        yield made


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RequesterBench]:
    with bench_of(tmp_path) as made:
        yield made


def numerators(plan: RoundPlan) -> dict[str, int]:
    return {weight.site: weight.numerator for weight in plan.weight_list.weights}


def settle(bench: RequesterBench, plan: RoundPlan, *, far: float = 5.0, declines: tuple[Refused, ...] = ()) -> None:
    """The round's sum is released, if nobody declines; c1 is ``far`` from the requester, so its weight erodes."""
    told, number = plan.announcement.message, plan.announcement.message.round
    if declines:
        bench.requester.settle(plan, Settled(RoundEnd.SKIPPED, 1, "too few", declines, None, 1.0))
        return
    past = evidence(told, plan.weight_list, (REQUESTER, *told.listed))
    owner = bench.requester
    owner.average = lambda past: np.zeros(MODEL.size, dtype=np.float32)  # type: ignore[method-assign]
    owner.take_release(past)
    distances = tuple((site, far if site == "c1" else 0.0) for site in told.listed)
    measured = Measured(round=number, requester_norm=1.0, took_part=told.listed, distances=distances)
    owner.settle(plan, Settled(RoundEnd.RELEASED, 1, "", (), False, 1.0, past, measured))


def test_a_first_round_asks_for_everybody_and_says_how_well_it_hides_them(bench: RequesterBench) -> None:
    plan = planned(bench)
    assert plan.announcement.message.least_contributors == len(CONTRIBUTORS)
    assert plan.isolation == pytest.approx(np.sqrt(2 / 3), abs=1e-4)
    settle(bench, plan)
    (record,) = [event.record for event in bench.events if event.record is not None]
    assert record.isolation == plan.isolation


def test_a_list_that_would_show_a_site_gives_way_to_the_last_one(bench: RequesterBench) -> None:
    """The updates do not move at all here: whatever c1's weight loses, the difference of two sums shows it."""
    first = planned(bench)
    settle(bench, first)
    eroded = {w.site: w.numerator for w in bench.requester.rule.numerators(bench.requester.progress.rule_state)}
    assert eroded["c1"] < GRID
    again = planned(bench)
    assert again.weight_list.weights == first.weight_list.weights
    assert again.isolation == pytest.approx(np.sqrt(2 / 3), abs=1e-4)
    settle(bench, again)
    assert bench.requester.progress.list_kept == 2
    assert {w.site: w.numerator for w in bench.requester.rule.numerators(bench.requester.progress.rule_state)}[
        "c1"
    ] < eroded["c1"], "the rule goes on in full precision"


def test_a_policy_that_asks_for_nothing_takes_the_rules_list(tmp_path: Path) -> None:
    with bench_of(tmp_path, SitePolicy(least_isolation=0.0)) as bench:
        settle(bench, planned(bench))
        plan = planned(bench)
        assert numerators(plan)["c1"] < GRID
        assert present(plan.isolation) < 1e-3
        assert plan.announcement.message.least_contributors == STUDY.parameters.least_contributors


def test_lists_change_as_seldom_as_the_study_says(tmp_path: Path) -> None:
    with bench_of(tmp_path, SitePolicy(least_isolation=0.0), list_every=3) as bench:
        told = []
        for _ in range(7):
            plan = planned(bench)
            told.append(numerators(plan)["c1"])
            settle(bench, plan)
        assert told[0] == told[1] == told[2] == GRID
        assert told[3] == told[4] == told[5] < GRID
        assert told[6] < told[5]


def test_a_dropped_site_may_not_leave_where_that_shows_it(bench: RequesterBench) -> None:
    settle(bench, planned(bench))
    bench.requester.keep(dropped=("c1",))
    wanted = bench.requester.study.parameters.model_copy(update={"least_contributors": 2})
    bench.requester.study = bench.requester.study.model_copy(update={"parameters": wanted})
    lenient = SitePolicy(least_contributors=1, largest_share=1.0)
    object.__setattr__(bench.requester.context, "policy", lenient)
    assert bench.requester.next_plan() is None
    end = present(bench.requester.progress.end)
    assert (end.message.state, end.message.cause) == (StudyEndState.LOCAL_ONLY, EndCause.ISOLATION)
    assert end.message.clause is Clause.ISOLATION
    assert "relative error" not in end.message.reason, "the servers read the clause, not the figure"
    assert "relative error" in bench.requester.progress.why


def test_a_list_that_a_site_declines_for_isolation_is_not_sent_again(tmp_path: Path) -> None:
    """The requester's own updates said yes, a site's said no: the site stays, the list goes."""
    with bench_of(tmp_path, SitePolicy(least_isolation=1e-9)) as bench:
        first = planned(bench)
        settle(bench, first)
        changed = planned(bench)
        assert numerators(changed)["c1"] < GRID
        refused = Refused("c2", ErrorCode.POLICY_REFUSAL, Clause.ISOLATION, "too small")
        settle(bench, changed, declines=(refused,))
        assert bench.requester.progress.dropped == ()
        again = planned(bench)
        assert again.weight_list.weights == first.weight_list.weights
        settle(bench, again)
        assert bench.requester.progress.exposing is None


def test_a_restart_plans_the_same_round(bench: RequesterBench, tmp_path: Path) -> None:
    settle(bench, planned(bench))
    plan = planned(bench)
    (bench.requester.journal.round_folder(2) / "plan.json").unlink()
    assert planned(bench).weight_list.weights == plan.weight_list.weights
    assert len(bench.requester.context.sums.known()) == 2


def test_an_update_of_zero_stands_in_for_nobody(bench: RequesterBench) -> None:
    bench.requester.learner._update[:] = 0  # type: ignore[attr-defined]
    plan = planned(bench)
    assert plan.isolation is None
    assert not bench.requester.context.sums.known()
