"""A ranking at its sites: what a contributor shares or refuses, what the requester asks with, keeps and shows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.contributor.decisions import refused_study
from client_agent.learning.data import Examples
from client_agent.learning.ridge import JudgedOn, JudgingForm, judging_form, ridge_model
from client_agent.requester.measurement import RankingRound, make_judging
from client_agent.requester.study import Refused, Settled
from client_agent.site.events import EventKind, RoundEnd
from client_agent.study.results import RANKING_FILE, RankedSite, Ranking, UnrankedSite
from host.files import new_folder
from protocol.arithmetic.fixed_point import decode
from protocol.errors import Clause, ErrorCode, NotListed, ProtocolViolation, UnknownResource
from protocol.messages.control import (
    MOST_RANKING_ROUNDS,
    ListedWeight,
    OutcomeCause,
    Purpose,
    RankingSpec,
    RoundState,
    RoundView,
    RuleName,
    RuleSpec,
    Study,
    sign,
)
from protocol.parameters import Needs
from protocol.policy.memory import remember_skip
from protocol.policy.site_policy import SitePolicy
from protocol.ranking import predictor
from protocol.rounds.evidence import PastRelease, check_release
from protocol.rules.weight_erosion import SecondWeight
from tests.kit.present import present
from tests.unit.client_agent.benches import (
    Bench,
    FakeLearner,
    RequesterBench,
    contributor_bench,
    planned,
    requester_bench,
)
from tests.unit.client_agent.federation import CONTRIBUTORS, REQUESTER, ROSTER, ended_round, keys, release
from tests.unit.client_agent.test_decisions import GRID, MODEL, decided, study_with

RNG = np.random.default_rng(6)
INPUTS, CLASSES = 3, 2
MODELS = RNG.normal(size=(INPUTS + 1, CLASSES)) / 4
JUDGED = Examples(RNG.normal(size=(12, INPUTS)).astype(np.float32), RNG.integers(0, CLASSES, 12))
CLIP_NORM = 4.0
EQUAL_COLUMNS = Examples(np.full((4, INPUTS), 1e9, dtype=np.float32), np.array([0, 1, 0, 1]))


def ranking_study(rule: RuleName = RuleName.FEDAVG) -> Study:
    plain = study_with(rule)
    model = plain.model.model_copy(update={"inputs": (INPUTS,), "classes": CLASSES})
    return plain.model_copy(update={"model": model, "ranking": RankingSpec(clip_norm=CLIP_NORM)})


STUDY = ranking_study()
WILLING = SitePolicy(may_rank=True)
PARAMETERS = STUDY.parameters_in(Purpose.RANKING)


@pytest.fixture(autouse=True)
def _linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every site's own model is the same one."""
    monkeypatch.setattr(FakeLearner, "ridge", lambda _, penalty: MODELS, raising=False)
    monkeypatch.setattr(FakeLearner, "judging_form", lambda _: judging_form(JUDGED, None, CLASSES), raising=False)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Bench]:
    with contributor_bench(tmp_path, STUDY, MODEL, WILLING) as made:
        yield made


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RequesterBench]:
    with requester_bench(tmp_path, STUDY, MODEL, WILLING) as made:
        yield made


def saw_skip(bench: Bench, number: int) -> None:
    bench.contributor.save(memory=remember_skip(bench.contributor.state.memory, number))


RANKS: dict[str, Any] = {"purpose": Purpose.RANKING, "opens": Needs.INNER_PRODUCTS}


class TestContributor:
    def test_its_model_is_encoded_as_it_is(self, site: Bench) -> None:
        """Rounding moves each coordinate by less than one ring unit."""
        decision = decided(site, 1, **RANKS)
        assert decision.accepted
        assert site.contributor.weight_in(decision.announcement) is None
        site.contributor.encode(decision.announcement, GRID)
        encoded = site.contributor.encoded_file(decision.announcement)
        assert encoded.length == PARAMETERS.dimension
        opened = decode(encoded(0, encoded.length), PARAMETERS)
        np.testing.assert_allclose(opened, predictor(MODELS), rtol=0, atol=1 / PARAMETERS.scale)

    def test_a_second_ranking_with_another_query_is_refused(self, site: Bench) -> None:
        assert decided(site, 1, **RANKS).accepted
        again = decided(site, 2, **RANKS)
        assert (again.accepted, again.code) == (False, ErrorCode.POLICY_REFUSAL)
        assert again.reason.startswith("ranked_once: ")
        assert decided(site, 3).accepted

    def test_a_site_that_does_not_allow_it_refuses_the_study_and_the_round(self, site: Bench, tmp_path: Path) -> None:
        with contributor_bench(new_folder(tmp_path / "strict"), STUDY, MODEL) as strict:
            refusal = present(refused_study(strict.contributor))
            assert refusal.detail.startswith("may_rank: ")
            assert decided(strict, 1, **RANKS).reason.startswith("may_rank: ")
        assert refused_study(site.contributor) is None

    def test_a_model_that_is_too_long_is_declined_and_its_length_stays_here(
        self, site: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(FakeLearner, "ridge", lambda _, penalty: 50 * MODELS)
        decision = site.contributor.carry_out(decided(site, 1, **RANKS), 1)
        length = f"{np.linalg.norm(predictor(50 * MODELS)):.3g}"
        assert (decision.accepted, decision.code) == (False, ErrorCode.UNUSABLE_UPDATE)
        assert length in decision.reason
        told = site.decline()
        assert told.code == ErrorCode.UNUSABLE_UPDATE
        assert told.reason == (
            "this site has no ridge regression within the ranking's clip_norm; the numbers stay at this site"
        )

    def test_a_site_without_a_model_declines_like_one_whose_model_is_too_long(
        self, site: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(FakeLearner, "ridge", lambda _, penalty: ridge_model(EQUAL_COLUMNS, CLASSES, penalty))
        decision = site.contributor.carry_out(decided(site, 1, **RANKS), 1)
        assert (decision.accepted, decision.code) == (False, ErrorCode.UNUSABLE_UPDATE)
        assert "rounding hides the penalty" in decision.reason
        assert "rounding" not in site.decline().reason

    def test_updates_are_numbered_after_it(self, site: Bench) -> None:
        """Without having seen one, a site takes it that all tries were needed."""
        assert site.contributor.update_number(MOST_RANKING_ROUNDS + 1, 0) == 1
        assert site.contributor.update_number(MOST_RANKING_ROUNDS, 0) == 1
        decided(site, 1, **RANKS)
        decided(site, 2)
        assert [site.contributor.update_number(number, 0) for number in (2, 3, 9)] == [1, 2, 8]

    def test_the_last_update_is_made_by_a_site_that_missed_the_ranking(self, site: Bench) -> None:
        """Its ranking was skipped, another was made without it, and the first update too: it saw neither end."""
        decided(site, 1, **RANKS)
        for number in (4, 5, MOST_RANKING_ROUNDS + STUDY.rounds):
            assert decided(site, number).accepted
            saw_skip(site, number)
        refused = decided(site, MOST_RANKING_ROUNDS + STUDY.rounds + 1)
        assert (refused.accepted, refused.code) == (False, ErrorCode.ANNOUNCEMENT_MISMATCH)
        assert refused.reason.endswith("is update 4 of a study with 3 rounds")

    @pytest.mark.parametrize("tries", [1, 2, 3])
    def test_a_site_that_declined_to_be_ranked_makes_no_update_too_many(
        self, site: Bench, monkeypatch: pytest.MonkeyPatch, tries: int
    ) -> None:
        monkeypatch.setattr(FakeLearner, "ridge", lambda _, penalty: 50 * MODELS)
        for number in range(1, tries + 1):
            decision = decided(site, number, **RANKS)
            if decision.accepted:
                site.contributor.carry_out(decision, 1)
            saw_skip(site, number)
        for number in range(tries + 1, tries + STUDY.rounds + 1):
            assert decided(site, number).accepted
            saw_skip(site, number)
        assert not decided(site, tries + STUDY.rounds + 1).accepted

    def test_both_servers_ending_it_is_recorded(self, site: Bench) -> None:
        decision = decided(site, 1, **RANKS)
        signed = sign(decision.announcement, REQUESTER, keys(REQUESTER).signing)
        view = RoundView(round=1, attempt=1, state=RoundState.RANKED, announcement=signed)
        with pytest.raises(UnknownResource, match="no server shows that it is ranked with both signatures"):
            site.contributor.follow(view, view)
        site.contributor.follow(view, view.model_copy(update={"outcome": ranked_of(1)}))
        (record,) = [event.record for event in site.events if event.kind is EventKind.ROUND]
        assert record is not None
        assert (record.purpose, record.state, record.took_part) == (Purpose.RANKING, RoundEnd.RANKED, ())
        assert site.contributor.state.memory.ranked == 1

    def test_nothing_is_taken_for_a_release_of_it(self) -> None:
        past: PastRelease = release()
        announced = past.announcement.model_copy(update=RANKS)
        with pytest.raises(ProtocolViolation, match="vectors are never summed"):
            check_release(past.model_copy(update={"announcement": announced}), ROSTER, announced.study_digest)


skip_of = partial(ended_round, STUDY.digest())
ranked_of = partial(ended_round, STUDY.digest(), outcome=RoundState.RANKED, cause=OutcomeCause.RANKED)


def ended(end: RoundEnd, number: int, *declines: Refused) -> Settled:
    skip = skip_of(number) if end is RoundEnd.SKIPPED else None
    return Settled(end, 1, "a site is late", declines, None, None, skip=skip)


def driven(bench: RequesterBench) -> tuple[RankingRound, RoundView]:
    """The ranking with the requester's part prepared, and a server's view of its end, signed by both."""
    plan = planned(bench)
    ranking = bench.requester.round_of(plan)
    assert isinstance(ranking, RankingRound)
    ranking.prepare_own()
    signed, outcome = plan.announcement, ranked_of(1)
    return ranking, RoundView(round=1, attempt=1, state=RoundState.RANKED, announcement=signed, outcome=outcome)


def kept(bench: RequesterBench) -> Ranking | None:
    return bench.requester.journal.read(bench.requester.journal.folder / RANKING_FILE, Ranking)


class TestRequester:
    def test_it_ranks_before_it_trains_and_the_round_does_not_count(self, bench: RequesterBench) -> None:
        plan = planned(bench)
        announced = plan.announcement.message
        assert (announced.round, announced.purpose, announced.opens) == (1, Purpose.RANKING, Needs.INNER_PRODUCTS)
        assert isinstance(bench.requester.round_of(plan), RankingRound)
        bench.requester.settle(plan, ended(RoundEnd.RANKED, 1))
        following = planned(bench).announcement.message
        assert (following.round, following.purpose) == (2, Purpose.UPDATE)
        assert not isinstance(bench.requester.round_of(planned(bench)), RankingRound)
        assert bench.requester.progress.updates_done == 0
        assert bench.requester.progress.memory.ranked == 1

    def test_a_site_that_declined_to_be_ranked_is_asked_to_train(self, bench: RequesterBench) -> None:
        declined = Refused("c2", ErrorCode.POLICY_REFUSAL, Clause.MAY_RANK, "may_rank: no")
        bench.requester.settle(planned(bench), ended(RoundEnd.RANKED, 1, declined))
        assert planned(bench).announcement.message.listed == CONTRIBUTORS

    def test_skipped_rankings_are_tried_again_until_training_goes_on_without(self, bench: RequesterBench) -> None:
        for number in range(1, MOST_RANKING_ROUNDS + 1):
            plan = planned(bench)
            assert (plan.announcement.message.round, plan.announcement.message.purpose) == (number, Purpose.RANKING)
            assert kept(bench) is None
            bench.requester.settle(plan, ended(RoundEnd.SKIPPED, number))
        plan = planned(bench)
        assert plan.announcement.message.purpose is Purpose.UPDATE
        assert len(plan.skipped) == MOST_RANKING_ROUNDS
        assert bench.requester.progress.updates_done == 0
        ranking = present(kept(bench))
        assert ranking.problem == "3 rounds were skipped, the last one because: a site is late"
        assert any("not ranked: 3 rounds were skipped" in text for text in bench.texts(EventKind.STUDY))

    def test_a_ranking_that_too_few_sites_want_is_not_tried_again(self, bench: RequesterBench) -> None:
        plan = planned(bench)
        long = Refused("c2", ErrorCode.UNUSABLE_UPDATE, None, "no ridge regression within clip_norm")
        bench.requester.settle(plan, ended(RoundEnd.SKIPPED, 1, long))
        following = planned(bench).announcement.message
        assert (following.round, following.purpose, following.listed) == (2, Purpose.UPDATE, CONTRIBUTORS)
        assert bench.requester.progress.updates_done == 0
        ranking = present(kept(bench))
        assert ranking.problem == "2 sites were willing, 3 are needed; trying again would not change that"
        assert ranking.unranked == (UnrankedSite(site="c2", reason=f"{long.code.value}: {long.reason}"),)

    @pytest.mark.parametrize("passing", [Clause.MODEL_BEHIND, Clause.OUTCOME_UNKNOWN])
    def test_a_site_that_was_only_late_is_waited_for(self, bench: RequesterBench, passing: Clause) -> None:
        away = Refused("c2", ErrorCode.POLICY_REFUSAL, passing, "it was away")
        bench.requester.settle(planned(bench), ended(RoundEnd.SKIPPED, 1, away))
        assert planned(bench).announcement.message.purpose is Purpose.RANKING
        assert kept(bench) is None

    def test_second_weights_count_for_updates_only(self, tmp_path: Path) -> None:
        """One below 1, and one that the grid rounds to 0: their sites are ranked like any other."""
        plain = ranking_study(RuleName.WEIGHT_EROSION)
        betas = (SecondWeight(site="c1", weight=0.5), SecondWeight(site="c2", weight=0.01))
        parameters = plain.parameters.model_copy(update={"least_contributors": 2})
        rule = RuleSpec(name=RuleName.WEIGHT_EROSION, second_weights=betas)
        of = plain.model_copy(update={"rule": rule, "parameters": parameters})
        with requester_bench(
            tmp_path, of, MODEL, SitePolicy(least_contributors=1, largest_share=1.0, may_rank=True, least_isolation=0.0)
        ) as eroding:
            told = planned(eroding).weight_list.weights
            assert told == tuple(ListedWeight(site=site, numerator=GRID) for site in CONTRIBUTORS)
            eroding.requester.settle(planned(eroding), ended(RoundEnd.RANKED, 1))
            told = planned(eroding).weight_list.weights
            assert [(one.site, one.numerator) for one in told] == [("c1", 1), ("c3", GRID)]

    def test_its_own_vector_is_zeros_and_its_query_the_scaled_form(self, bench: RequesterBench) -> None:
        ranking = bench.requester.round_of(planned(bench))
        ranking.prepare_own()
        own = bench.requester.encoded_file(planned(bench).announcement.message)
        assert not own(0, own.length).any()
        judging = make_judging(bench.requester, 1)
        form = judging_form(JUDGED, None, CLASSES).form
        assert judging.scale == pytest.approx(CLIP_NORM / form.length)
        assert judging.own_loss == form.loss(predictor(MODELS))
        assert judging.judged_on is JudgedOn.TRAINING
        query = decode(ranking.query_vector(bytes(32), ("c1", "c2")), PARAMETERS).reshape(2, -1)
        np.testing.assert_array_equal(query[0], query[1])
        np.testing.assert_allclose(query[0], form.vector * judging.scale, rtol=0, atol=1 / PARAMETERS.scale)

    def test_a_restart_asks_with_the_same_query_even_if_the_data_changed(
        self, bench: RequesterBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = make_judging(bench.requester, 1)
        monkeypatch.setattr(FakeLearner, "judging_form", _changed_data)
        assert make_judging(bench.requester, 1) == first

    def test_a_half_that_a_server_lost_leaves_the_study_without_a_ranking(self, bench: RequesterBench) -> None:
        ranking, view = driven(bench)
        unsigned = view.model_copy(update={"outcome": None})
        assert ranking.ended(unsigned, unsigned) is None
        settled = present(ranking.ended(view, unsigned))
        assert (settled.end, settled.past, settled.skip) == (RoundEnd.RANKED, None, None)
        assert present(kept(bench)).problem.startswith("one server lost its half")

    def test_what_was_opened_once_is_not_opened_again(
        self, bench: RequesterBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ranking, view = driven(bench)
        made = Ranking(study=STUDY.name, requester=REQUESTER, round=1, sites=(RankedSite(site="c1", loss=0.5),))
        monkeypatch.setattr(ranking, "_open", lambda a, b: made)
        assert ranking.ended(view, view) is not None
        monkeypatch.setattr(ranking, "_open", pytest.fail)
        assert ranking.ended(view, view) is not None
        assert kept(bench) == made

    def test_evidence_that_does_not_hold_ends_the_study(
        self, bench: RequesterBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ranking, view = driven(bench)
        monkeypatch.setattr(ranking, "_open", _refuses)
        with pytest.raises(ProtocolViolation, match="round 1: another server's answer"):
            ranking.ended(view, view)

    def test_nothing_is_released_while_it_is_measured(self, bench: RequesterBench) -> None:
        ranking, view = driven(bench)
        measured = view.model_copy(update={"state": RoundState.MEASURED})
        assert ranking.due(measured, measured) is None
        assert ranking.ended(measured, measured) is None


def _changed_data(_: object) -> JudgingForm:
    return judging_form(Examples(2 * JUDGED.X, JUDGED.y), None, CLASSES)


def _refuses(a: RoundView, b: RoundView) -> Ranking:
    raise NotListed("another server's answer")
