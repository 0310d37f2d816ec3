"""Measured rounds at the requester and at a site: what is kept, what is tried again, who is sent a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.learning.update_noise import UpdateNoise
from client_agent.requester.admission import bring_up_to_date, show_model
from client_agent.requester.measurement import MeasuringRound
from client_agent.requester.openings import Opened, Openings
from client_agent.requester.own_update import keep_from_mean, kept_from_mean, learns_from, own_noise
from client_agent.requester.run import Requester
from client_agent.requester.study import RoundPlan, Settled, Welcomed
from client_agent.site.events import RoundEnd
from host.files import new_folder
from protocol.errors import BadSignature, Clause, ProtocolViolation, UnknownResource, UnusableUpdate
from protocol.messages.control import (
    Announcement,
    OutcomeCause,
    Purpose,
    RoundState,
    RoundView,
    RuleName,
    Signed,
    StudyEndState,
)
from protocol.mpc.measurement import OpenedSite
from protocol.parameters import Needs
from protocol.policy.memory import remember_release
from protocol.rounds.judgement import Judgement
from protocol.rules.interface import Measured, PairDistance
from protocol.sharing import Side
from tests.kit.present import present
from tests.kit.round_messages import agreed_set
from tests.unit.client_agent.benches import (
    Bench,
    FakeLearner,
    RequesterBench,
    contributor_bench,
    planned,
    requester_bench,
)
from tests.unit.client_agent.federation import CONTRIBUTORS, REQUESTER, ended_round, evidence
from tests.unit.client_agent.test_decisions import MODEL, SIZE, study_with

STUDY = study_with(RuleName.MALLOWS, grid=32)
SHRINKAGE = study_with(RuleName.SHRINKAGE, grid=32)
MEASURES: dict[str, Any] = {"purpose": Purpose.MEASURE, "opens": Needs.PAIRS}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RequesterBench]:
    with requester_bench(tmp_path, STUDY, MODEL) as made:
        yield made


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Bench]:
    with contributor_bench(tmp_path, STUDY, MODEL) as made:
        yield made


def plan_of(plan: RoundPlan, announcement: Announcement) -> RoundPlan:
    """The plan with another announcement, unsigned."""
    return plan.model_copy(update={"announcement": Signed[Announcement](message=announcement)})


def skipped(number: int) -> Settled:
    skip = ended_round(STUDY.digest(), number, cause=OutcomeCause.TOO_FEW_CONTRIBUTORS)
    return Settled(RoundEnd.SKIPPED, 1, "too few", (), None, 1.0, skip=skip)


def everybody(number: int) -> Measured:
    """All as far apart as noise of 1/2 makes sites that are alike."""
    names = (REQUESTER, *CONTRIBUTORS)
    pairs = [PairDistance(first=a, second=b, distance=1.0) for i, b in enumerate(names) for a in names[:i]]
    return Measured(round=number, pairs=tuple(pairs), requester_norm=1.0, variance=0.5, took_part=CONTRIBUTORS)


def closed(number: int, measured: Measured | None) -> Settled:
    return Settled(RoundEnd.CLOSED, 1, "", (), False, 1.0, measured=measured)


class TestSettling:
    def test_the_first_round_measures_everybody_and_does_not_count(self, bench: RequesterBench) -> None:
        plan = planned(bench)
        told = plan.announcement.message
        assert (told.purpose, told.opens, told.listed) == (Purpose.MEASURE, Needs.PAIRS, CONTRIBUTORS)
        assert (plan.weight_list.requester, {w.numerator for w in plan.weight_list.weights}) == (None, {32})
        bench.requester.settle(plan, closed(1, everybody(1)))
        progress = bench.requester.progress
        assert (progress.updates_done, progress.measured_rounds, progress.measure_tries) == (0, 1, 0)
        (record,) = [event.record for event in bench.events if event.record is not None]
        assert (record.took_part, len(record.pairs)) == ((REQUESTER, *CONTRIBUTORS), 6)
        following = planned(bench)
        assert following.announcement.message.purpose is Purpose.UPDATE
        assert following.weight_list.requester is not None

    def test_one_that_was_skipped_is_tried_again_over_the_same_model(self, bench: RequesterBench) -> None:
        bench.requester.settle(planned(bench), skipped(1))
        again = planned(bench)
        assert (again.announcement.message.purpose, again.announcement.message.round) == (Purpose.MEASURE, 2)
        assert again.skipped == (skipped(1).skip,), "sites that did not see it are shown it"

    def test_three_tries_without_a_list_end_the_shared_part(self, bench: RequesterBench) -> None:
        for number in (1, 2, 3):
            bench.requester.settle(planned(bench), skipped(number))
        assert bench.requester.next_plan() is None
        end = present(bench.requester.progress.end)
        assert (end.message.state, end.message.clause) == (StudyEndState.LOCAL_ONLY, Clause.ENOUGH_CONTRIBUTORS)

    @pytest.mark.parametrize("found", [None, everybody(1).model_copy(update={"pairs": (), "took_part": ()})])
    def test_one_that_may_have_been_opened_is_not_tried_again(
        self, bench: RequesterBench, found: Measured | None
    ) -> None:
        """A half was lost, or nobody passed: every site would refuse another one of this model."""
        before = bench.requester.progress.rule_state
        bench.requester.settle(planned(bench), closed(1, found))
        assert bench.requester.progress.rule_state == before
        assert bench.requester.next_plan() is None
        end = present(bench.requester.progress.end)
        assert (end.message.state, end.message.clause) == (StudyEndState.LOCAL_ONLY, Clause.MEASURED_TWICE)

    def test_what_failed_in_a_measurement_is_in_its_record(self, bench: RequesterBench) -> None:
        some = everybody(1).model_copy(update={"took_part": ("c2", "c3")})
        pairs = tuple(pair for pair in some.pairs if "c1" not in (pair.first, pair.second))
        settled = closed(1, some.model_copy(update={"pairs": pairs}))
        settled = Settled(**{**vars(settled), "failed_check": ("c1",)})
        bench.requester.settle(planned(bench), settled)
        (record,) = [event.record for event in bench.events if event.record is not None]
        assert (record.failed_check, record.took_part) == (("c1",), (REQUESTER, "c2", "c3"))


def at_its_end(plan: RoundPlan, state: RoundState = RoundState.CLOSED) -> RoundView:
    return RoundView(
        round=1,
        attempt=1,
        state=state,
        announcement=plan.announcement,
        outcome=ended_round(STUDY.digest(), outcome=RoundState.CLOSED, cause=OutcomeCause.CLOSED),
    )


def driven(bench: RequesterBench) -> tuple[MeasuringRound, RoundView]:
    plan = planned(bench)
    drives = bench.requester.round_of(plan)
    assert isinstance(drives, MeasuringRound)
    drives.prepare_own()
    return drives, at_its_end(plan)


class TestDriving:
    def test_what_both_servers_hold_is_opened_once_it_is_closed(
        self, bench: RequesterBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = everybody(1).model_copy(update={"variance": None, "requester_norm": 0.0})
        opened = Opened(measured=found, left_out=("c9",), release_set=None)
        monkeypatch.setattr(Openings, "opened", lambda *_: opened)
        drives, view = driven(bench)
        assert drives.ended(view.model_copy(update={"state": RoundState.MEASURED}), view) is None
        settled = present(drives.ended(view, view))
        assert (settled.end, settled.reason, settled.failed_check) == (RoundEnd.CLOSED, "", ("c9",))
        assert settled.measured is not None
        assert settled.measured.variance == 0.5
        assert settled.measured.requester_norm == pytest.approx(0.01 * np.sqrt(SIZE), rel=2.0**-23)

    def test_an_end_with_one_signature_is_none(self, bench: RequesterBench) -> None:
        drives, view = driven(bench)
        assert view.outcome is not None
        half = view.outcome.model_copy(update={"signatures": view.outcome.signatures[:1]})
        alone = view.model_copy(update={"outcome": half})
        assert drives.ended(alone, alone) is None

    def test_nothing_is_released_while_it_is_measured(self, bench: RequesterBench) -> None:
        drives, view = driven(bench)
        measured = view.model_copy(update={"state": RoundState.MEASURED, "outcome": None})
        assert drives.due(measured, measured) is None

    @pytest.mark.parametrize(
        ("error", "reason"),
        [(UnknownResource("gone"), "one server lost its half of what is opened"), (BadSignature("whose"), "")],
    )
    def test_a_half_that_is_gone_is_lost_and_evidence_that_does_not_hold_ends_the_study(
        self, bench: RequesterBench, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
    ) -> None:
        def fails(*_: object) -> Opened:
            raise error

        monkeypatch.setattr(Openings, "opened", fails)
        drives, view = driven(bench)
        if not reason:
            with pytest.raises(ProtocolViolation, match="round 1: whose"):
                drives.ended(view, view)
            return
        settled = present(drives.ended(view, view))
        assert settled.measured is None
        assert settled.reason.startswith(reason)

    def test_nobody_measured_is_said(self, bench: RequesterBench, monkeypatch: pytest.MonkeyPatch) -> None:
        nobody = everybody(1).model_copy(update={"pairs": (), "took_part": ()})
        monkeypatch.setattr(
            Openings, "opened", lambda *_: Opened(measured=nobody, left_out=CONTRIBUTORS, release_set=None)
        )
        drives, view = driven(bench)
        settled = present(drives.ended(view, view))
        assert settled.reason.startswith("nobody was measured")

    def test_a_round_that_sums_nothing_signs_no_release_set(self, bench: RequesterBench) -> None:
        plan = planned(bench)
        announced_round = plan.announcement.message
        openings = Openings(bench.requester, plan)
        names = (REQUESTER, *CONTRIBUTORS)
        agreed = agreed_set(announced_round, names)
        pairs = {site: tuple((other, 0.5) for other in names[:place]) for place, site in enumerate(names)}
        facts = bench.requester.round_of(plan)._facts()
        for failing in ((), ("c1",), (REQUESTER,), CONTRIBUTORS):
            sites = [
                OpenedSite(site, site not in failing, pairs=tuple(p for p in pairs[site] if p[0] not in failing))
                if site not in failing
                else OpenedSite(site, False)
                for site in names
            ]
            found = openings.judged(agreed, sites, 1, facts)
            assert found.release_set is None
            assert found.left_out == tuple(site for site in names if site in failing)
            expected = () if REQUESTER in failing else tuple(site for site in CONTRIBUTORS if site not in failing)
            assert found.measured.took_part == expected

    def test_a_judgement_without_the_requester_measured_nobody(self) -> None:
        measured = Measured(round=1, requester_norm=1.0, took_part=("c1",))
        assert Judgement(measured, (), (), requester_passed=True).measured_anybody
        assert not Judgement(measured, (), (), requester_passed=False).measured_anybody


class TestOwnNoise:
    def test_it_is_estimated_once(self, bench: RequesterBench, monkeypatch: pytest.MonkeyPatch) -> None:
        assert own_noise(bench.requester, 1).variance == 0.5
        monkeypatch.setattr(FakeLearner, "update_noise", lambda *_: UpdateNoise(9.0, 1.0))
        assert own_noise(bench.requester, 1).variance == 0.5
        assert own_noise(bench.requester, 2).variance == 9.0

    def test_a_rule_learns_from_measurements_or_from_sums_and_others_from_neither(self, tmp_path: Path) -> None:
        found = {}
        for rule in (RuleName.MALLOWS, RuleName.SHRINKAGE, RuleName.FEDAVG):
            with requester_bench(new_folder(tmp_path / rule.value), study_with(rule), MODEL) as made:
                found[rule] = {purpose for purpose in Purpose if learns_from(made.requester.rule, purpose)}
        assert found == {
            RuleName.MALLOWS: {Purpose.MEASURE},
            RuleName.SHRINKAGE: {Purpose.UPDATE},
            RuleName.FEDAVG: set(),
        }

    def test_without_it_no_study_is_begun(self, bench: RequesterBench, monkeypatch: pytest.MonkeyPatch) -> None:
        def lacking(*_: object) -> UpdateNoise:
            raise UnusableUpdate("the noise of an update needs two training examples at least")

        monkeypatch.setattr(FakeLearner, "update_noise", lacking)
        bench.requester.state = bench.requester.state.model_copy(update={"model_version": None})
        with pytest.raises(UnusableUpdate, match="two training examples"):
            bench.requester.run()
        assert bench.servers[Side.A].sent == {}

    def test_the_distance_from_the_mean_is_kept_before_the_model_steps(self, tmp_path: Path) -> None:
        """Three others at 0.05 everywhere, this site at 0.01: gbar is 0.04, 0.03 from here in each of 20."""
        with requester_bench(tmp_path, SHRINKAGE, MODEL) as made:
            owner = made.requester
            plan = present(owner.next_plan())
            told = plan.announcement.message
            owner.encode(told, plan.weight_list.own_numerator)
            past = evidence(told, plan.weight_list, (REQUESTER, *CONTRIBUTORS))
            with pytest.raises(ProtocolViolation, match="the model stepped, and the distance from the mean was not"):
                kept_from_mean(owner, 1)
            keep_from_mean(owner, past, np.full(SIZE, 0.04, dtype=np.float32))
            assert kept_from_mean(owner, 1) == pytest.approx(0.03 * np.sqrt(SIZE), rel=1e-3)

    def test_the_examples_seen_count_where_the_roster_declares_more(self, tmp_path: Path) -> None:
        with requester_bench(tmp_path, STUDY, MODEL) as made:
            declared = _requester_samples(made.requester)
            made.requester._weigh_by_own_samples(made.requester.rule)  # type: ignore[arg-type]
            assert (declared, _requester_samples(made.requester)) == (50, 40)


def _requester_samples(owner: Requester) -> int:
    noise = owner.rule.terms.noise  # type: ignore[attr-defined]
    return int(noise.requester_samples)


class TestUnlistedSites:
    def behind(
        self,
        bench: RequesterBench,
        listed: tuple[str, ...],
        monkeypatch: pytest.MonkeyPatch,
        dropped: tuple[str, ...] = (),
    ) -> list[str]:
        """The sites that are sent the model when the next round measures, after a sum over ``listed``."""
        owner, sent = bench.requester, list[str]()
        told: Announcement = planned(bench).announcement.message.model_copy(
            update={"purpose": Purpose.UPDATE, "opens": Needs.NORMS, "listed": listed, "least_contributors": 2}
        )
        of = planned(bench).weight_list
        of = of.model_copy(update={"weights": tuple(w for w in of.weights if w.site in listed)})
        past = evidence(told, of, (REQUESTER, *listed))
        owner.save(model_version=1)
        owner.keep(
            history=(past,),
            welcomed=tuple(Welcomed(site=site, version=0) for site in CONTRIBUTORS),
            memory=remember_release(owner.progress.memory, told, of, listed),
            next_round=2,
            dropped=dropped,
        )

        def welcomes(_: object, sites: list[str], **within: float) -> bool:
            sent.extend(sites)
            return True

        monkeypatch.setattr("client_agent.requester.admission.welcome", welcomes)
        bring_up_to_date(owner)
        bring_up_to_date(owner)
        return sent

    def test_they_are_sent_the_model_once_before_they_are_measured(
        self, bench: RequesterBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.behind(bench, ("c1", "c2"), monkeypatch) == ["c3"]
        assert {one.site: one.version for one in bench.requester.progress.welcomed} == {"c1": 0, "c2": 0, "c3": 1}

    def test_so_are_those_whom_the_next_sums_list_has_anew(
        self, bench: RequesterBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A site that comes late would decline its first round for want of the model."""
        monkeypatch.setattr("client_agent.requester.admission.next_purpose", lambda _: Purpose.UPDATE)
        assert self.behind(bench, ("c1", "c2"), monkeypatch) == []
        owner, sent, waits = bench.requester, list[str](), list[float]()

        def welcomes(_: object, sites: list[str], longest_s: float) -> bool:
            sent.extend(sites)
            waits.append(longest_s)
            return True

        monkeypatch.setattr("client_agent.requester.admission.welcome", welcomes)
        announcement = planned(bench).announcement.message
        of_all = announcement.model_copy(
            update={"purpose": Purpose.UPDATE, "listed": CONTRIBUTORS, "least_contributors": 2}
        )
        for listed in (("c1", "c2"), CONTRIBUTORS, CONTRIBUTORS):
            told = of_all.model_copy(update={"listed": listed})
            show_model(owner, plan_of(planned(bench), told))
        show_model(owner, plan_of(planned(bench), of_all.model_copy(update={"purpose": Purpose.MEASURE})))
        assert (sent, waits) == (["c3"], [owner.study.round_deadline_s / 4])
        assert {one.site: one.version for one in owner.progress.welcomed} == {"c1": 0, "c2": 0, "c3": 1}

    def test_whoever_is_out_is_not(self, bench: RequesterBench, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.behind(bench, ("c1", "c2"), monkeypatch, dropped=("c3",)) == []

    def test_nobody_is_before_a_sum(self, bench: RequesterBench, monkeypatch: pytest.MonkeyPatch) -> None:
        state = bench.requester.progress.rule_state
        first = planned(bench)
        bench.requester.settle(first, closed(1, everybody(1)))
        assert bench.requester.progress.rule_state != state
        monkeypatch.setattr("client_agent.requester.admission.welcome", pytest.fail)
        bring_up_to_date(bench.requester)
