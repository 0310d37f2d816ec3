"""Rounds of class counts come first, are repeated when skipped, and do not count; what ends the study instead."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from client_agent.requester.plan import hindrance, new_plan
from client_agent.requester.state import Settled
from client_agent.site.events import RoundEnd
from client_agent.site.letters import CountedClasses
from protocol.messages.control import (
    MOST_COUNTS_ROUNDS,
    Purpose,
    RuleName,
    StudyEndState,
    require_signatures,
)
from protocol.parameters import Needs
from protocol.policy.memory import remember_release
from protocol.rules.interface import Measured
from tests.kit.present import present
from tests.unit.client_agent.benches import RequesterBench, planned, requester_bench
from tests.unit.client_agent.federation import CONTRIBUTORS, REQUESTER, ROSTER, ended_round
from tests.unit.client_agent.test_decisions import MODEL, TOTALS, study_with

STUDY = study_with(RuleName.WFEDAVG)
DIGEST = STUDY.digest()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RequesterBench]:
    with requester_bench(tmp_path, STUDY, MODEL) as made:
        yield made


skip_of = partial(ended_round, DIGEST)


def skip(bench: RequesterBench) -> None:
    plan = planned(bench)
    number = plan.announcement.message.round
    settled = Settled(RoundEnd.SKIPPED, 1, "a site is late", (), None, None, skip=skip_of(number))
    bench.requester.settle(plan, settled)


def count(bench: RequesterBench, totals: tuple[int, ...] = TOTALS) -> None:
    """A released round of counts, as it is after its sum was opened."""
    plan = planned(bench)
    announced = plan.announcement.message
    number = announced.round
    bench.requester.save(counted=CountedClasses(study_digest=DIGEST, round=number, totals=totals))
    bench.requester.keep(
        next_round=number + 1,
        counts_rounds=number,
        memory=remember_release(bench.requester.progress.memory, announced, plan.weight_list, announced.listed),
    )


def test_counts_come_first_open_nothing_and_are_repeated_when_skipped(bench: RequesterBench) -> None:
    for number in (1, 2):
        announced = planned(bench).announcement.message
        assert (announced.round, announced.purpose, announced.opens) == (number, Purpose.COUNTS, Needs.NOTHING)
        assert planned(bench).counted is None
        skip(bench)
        assert bench.requester.progress.updates_done == 0
    assert bench.requester.progress.counts_rounds == 2


def test_updates_follow_with_the_totals_for_sites_that_missed_them(bench: RequesterBench) -> None:
    skip(bench)
    count(bench)
    plan = planned(bench)
    announced = plan.announcement.message
    assert (announced.round, announced.purpose) == (3, Purpose.UPDATE)
    assert require_signatures(present(plan.counted), ROSTER, (REQUESTER,)).totals == TOTALS
    assert bench.requester.progress.updates_done == 0
    assert bench.requester.update_number(3, 0) == 1
    assert {weight.numerator for weight in plan.weight_list.weights} == {STUDY.parameters.weight_grid}


def ended(bench: RequesterBench) -> tuple[str, str]:
    """The texts at the servers and at this site of a study that failed."""
    assert bench.requester.next_plan() is None
    end = present(bench.requester.progress.end)
    assert end.message.state is StudyEndState.FAILED
    return end.message.reason, bench.requester.progress.why


def test_a_class_that_no_site_has_ends_the_study_and_the_servers_do_not_learn_which(bench: RequesterBench) -> None:
    count(bench, (14, 0))
    public, why = ended(bench)
    assert public == "no site has a training example of some class, so no site can weigh itself"
    assert "classes [1]; check the labels" in why
    assert "1" not in public


def test_a_class_that_no_site_has_is_called_by_the_studys_name(bench: RequesterBench) -> None:
    of = bench.requester.study
    model = of.model.named((), ("benign", "malignant"))
    bench.requester.study = of.model_copy(update={"model": model})
    count(bench, (14, 0))
    public, why = ended(bench)
    assert "malignant" not in public
    assert "classes ['malignant']; check the labels" in why


def test_counts_that_cannot_be_summed_end_the_study(bench: RequesterBench) -> None:
    bench.requester.keep(next_round=MOST_COUNTS_ROUNDS + 1, counts_rounds=MOST_COUNTS_ROUNDS)
    assert "could not be summed in 8 rounds" in ended(bench)[0]


def test_counts_whose_sum_was_discarded_are_not_summed_again(bench: RequesterBench) -> None:
    plan = planned(bench)
    memory = bench.requester.progress.memory
    announced = plan.announcement.message
    bench.requester.keep(
        next_round=2, counts_rounds=1, memory=remember_release(memory, announced, plan.weight_list, announced.listed)
    )
    assert "counts are summed once per study" in ended(bench)[0]


def test_a_plan_of_a_crashed_process_is_taken_up_whatever_hinders(bench: RequesterBench) -> None:
    """Its announcement may have left: the round is driven to its end first."""
    first = planned(bench)
    assert hindrance(bench.requester) is not None
    assert planned(bench) == first


def test_other_rules_know_no_counts(tmp_path: Path) -> None:
    with requester_bench(tmp_path, study_with(RuleName.FEDAVG), MODEL) as bench:
        assert hindrance(bench.requester) is None
        assert new_plan(bench.requester).announcement.message.purpose is Purpose.UPDATE


def test_an_adaptive_optimisers_moments_are_digested_with_the_model(tmp_path: Path) -> None:
    with requester_bench(tmp_path, study_with(RuleName.FEDADAM), np.tile(MODEL, 3)) as bench:
        before = new_plan(bench.requester).announcement.message.model_digest
        assert bench.requester.require_model().shape == MODEL.shape
        kept = bench.requester.require_kept().copy()
        kept[-1] += 1
        bench.requester._kept = kept
        assert new_plan(bench.requester).announcement.message.model_digest != before


def test_a_settled_round_of_counts_is_none_that_the_rule_sees(bench: RequesterBench) -> None:
    """A released round raises every site's count of rounds taken part in; one of class counts does not."""
    before = bench.requester.progress.rule_state
    measured = Measured(round=1, requester_norm=0.0, took_part=CONTRIBUTORS)
    bench.requester.settle(planned(bench), Settled(RoundEnd.RELEASED, 1, "", (), None, None, measured=measured))
    assert bench.requester.progress.rule_state == before
    assert all(site.rounds == 0 for site in before.sites)
