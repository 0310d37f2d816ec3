"""A requester, and a server on its side, try to get more out of a measurement than pairs of updates once per model.

Sites are the agents' own code with the default policies; servers decide with their own functions over a real store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.adversaries.scripted.requester import GRID, ROSTER, SITES, START, Federation, Round
from harness.adversaries.scripted.requester import study as scripted_study
from protocol.errors import AnnouncementMismatch, MalformedMessage, ProtocolViolation, WrongRound
from protocol.evidence import check_release
from protocol.parameters import Needs
from protocol.policy.memory import remember_skip
from protocol.rounds.announce import LastRound, check_said
from protocol.rounds.side_a import outcome_of
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from protocol.wire.authentic import sign
from protocol.wire.messages import (
    Announcement,
    OutcomeCause,
    Purpose,
    RankingSpec,
    RoundOutcome,
    RoundState,
    RuleName,
    RuleSpec,
    Signed,
    Study,
    StudyState,
)
from servers.correlations.wanted import demand
from servers.rounds.outcomes import countersign_outcome
from servers.rounds.release import accept_release_set
from servers.store.interface import RoundRecord, StudyRecord
from servers.store.migrate import upgrade
from servers.store.sql import SqlStore
from tests.adversarial.test_one_end_a_round import AGREED, ALL, FIVE, OPERATORS, PARTIES, server_on
from tests.adversarial.test_one_end_a_round import ROSTER as OF_FIVE
from tests.unit.parties import announcement
from tests.unit.parties import study as unit_study

MALLOWS = RuleSpec(name=RuleName.MALLOWS)
OF = scripted_study("measured", rule=MALLOWS)
FOUR = SITES[:4]


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Federation]:
    with Federation(tmp_path) as federation:
        yield federation


def measure(sites: Federation, number: int, version: int = 0, of: Study = OF, **changes: Any) -> Round:
    """A measurement of everybody; nothing is released."""
    asked = {"listed": SITES, "end": None} | changes
    return sites.round(of, number, version=version, purpose=Purpose.MEASURE, **asked)


def all_refuse(made: Round, clause: str) -> None:
    assert set(made.refused) == set(made.decisions)
    assert {reason.split(":")[0] for reason in made.refused.values()} == {clause}
    assert not made.sum.any(), "nothing is encoded"


class TestAtTheSites:
    def test_an_honest_one_is_taken_part_in(self, sites: Federation) -> None:
        assert measure(sites, 1).refused == {}

    def test_weights_other_than_1_are_refused(self, sites: Federation) -> None:
        """||w_i g_i - w_j g_j|| for weights of the requester's choice would tell products of updates too."""
        all_refuse(measure(sites, 1, numerators={"c1": GRID - 1}), "grid")

    def test_a_weight_of_the_requester_is_refused(self, sites: Federation) -> None:
        all_refuse(measure(sites, 1, own=GRID // 2), "grid")

    def test_a_second_one_of_a_model_is_refused_whoever_is_listed_and_however_the_first_ended(
        self, sites: Federation
    ) -> None:
        assert measure(sites, 1).refused == {}
        all_refuse(measure(sites, 2), "measured_twice")
        all_refuse(measure(sites, 3, listed=FOUR), "measured_twice")
        for site in SITES:
            sites.restart(site)
        all_refuse(measure(sites, 4), "measured_twice")

    def test_one_that_both_servers_skipped_may_come_again(self, sites: Federation) -> None:
        measure(sites, 1)
        for site in SITES:
            agent = sites.agent(site, OF)
            agent.save(memory=remember_skip(agent.state.memory, 1))
        assert measure(sites, 2).refused == {}

    def test_another_model_may_be_measured_but_none_that_is_not_the_sites_own(self, sites: Federation) -> None:
        """A crafted model would show single examples in the distances of the updates that it leads to."""
        crafted = np.full_like(START, 7)
        for reason in measure(sites, 1, model=crafted).refused.values():
            assert "this site's model 0 is not the requester's" in reason
        all_refuse(measure(sites, 2, version=1, model=crafted), "model_behind")
        for site in SITES:
            sites.serve(OF, site, START / 2, 1)
        assert measure(sites, 3, version=1, model=START / 2).refused == {}

    def test_a_rule_that_measures_nothing_apart_has_none(self, sites: Federation) -> None:
        for reason in measure(sites, 1, of=scripted_study("averages")).refused.values():
            assert "measures updates and sums nothing, which this study does not" in reason

    def test_a_sum_opens_no_pairs_and_a_measurement_nothing_else(self, sites: Federation) -> None:
        """Pairs of weighted updates beside those of unweighted ones would tell products of updates."""
        all_refuse(sites.round(OF, 1, SITES, version=0, opens=Needs.PAIRS), "measured_for_nothing")
        assert sites.round(OF, 2, SITES, version=0, opens=Needs.NORMS).refused == {}
        with pytest.raises(ValueError, match="a measurement opens pairs"):
            announcement(OF.digest(), **(MEASURES | {"opens": Needs.DISTANCES}))

    def test_a_sum_whose_end_is_unknown_comes_first(self, sites: Federation) -> None:
        """Else distances over a model could be had from sites that must not yet answer another sum over it."""
        assert sites.round(OF, 1, SITES, version=0, end=None).refused == {}
        all_refuse(measure(sites, 2), "outcome_unknown")

    def test_it_leaves_every_other_memory_as_it_was(self, sites: Federation) -> None:
        assert sites.round(OF, 1, SITES, version=0, numerators={"c1": GRID - 9}).refused == {}
        for site in SITES:
            sites.serve(OF, site, START / 2, 1)
        before = {site: sites.agent(site, OF).state.memory for site in SITES}
        sums = {site: sites.agent(site, OF).context.sums.rounds() for site in SITES}
        assert measure(sites, 2, version=1, model=START / 2).refused == {}
        for site in SITES:
            after = sites.agent(site, OF).state.memory
            kept = ("last_listed", "summed_list", "summed_requester", "unsettled", "left_out")
            assert {field: getattr(after, field) for field in kept} == {
                field: getattr(before[site], field) for field in kept
            }
            assert (after.measured_rounds, after.apart) == ((), 2)
            assert sites.agent(site, OF).context.sums.rounds() == sums[site]

    def test_it_opens_no_way_around_isolation(self, sites: Federation) -> None:
        """All four are summed, measured over nearly the same model, and three of them asked for a sum: as without."""
        assert sites.round(OF, 1, FOUR, version=0).refused == {}
        nearly = (START * (1 + 1e-6)).astype(np.float32)
        for site in FOUR:
            sites.serve(OF, site, nearly, 1)
        assert measure(sites, 2, version=1, model=nearly, listed=FOUR).refused == {}
        all_refuse(sites.round(OF, 3, FOUR[1:], version=1, model=nearly), "isolation")

    def test_its_evidence_is_that_of_no_release(self, sites: Federation) -> None:
        """The requester signs a release set for it, and sends it to sites as one of a sum."""
        made = measure(sites, 1)
        with pytest.raises(ProtocolViolation, match="its vectors are never summed"):
            check_release(made.past, ROSTER, OF.digest())
        with pytest.raises(ProtocolViolation, match="its vectors are never summed"):
            sites.agent("c1", OF).take_release(made.past)


STUDY = unit_study(OF_FIVE.digest()).model_copy(update={"rule": MALLOWS})
KEY = RoundKey(STUDY.digest(), 1, 1)
MEASURES: dict[str, Any] = {"opens": Needs.PAIRS, "purpose": Purpose.MEASURE, "model_version": 0, "listed": FIVE[1:]}
SUMS: dict[str, Any] = {"opens": Needs.NORMS, "listed": FIVE[1:]}
ANNOUNCED = announcement(STUDY.digest(), **MEASURES)


def record_in(state: RoundState, message: Announcement = ANNOUNCED) -> RoundRecord:
    return RoundRecord(KEY, state, Signed[Announcement](message=message), float(message.closes_at_s))


def store_with(folder: Path, record: RoundRecord) -> SqlStore:
    url = f"sqlite:///{folder / 'store.db'}"
    upgrade(url)
    made = SqlStore(url, lambda _: None)
    made.add_study(StudyRecord(KEY.study, Signed[Study](message=STUDY), StudyState.OPEN, "", 1))
    made.add_round(record)
    return made


def by_a(state: RoundState, cause: OutcomeCause) -> Signed[RoundOutcome]:
    return sign(outcome_of(KEY, state, cause), OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)


class TestAtTheServers:
    @pytest.mark.parametrize(
        ("wanted", "cause"),
        [
            (RoundState.SKIPPED, OutcomeCause.NOT_AGREED_IN_TIME),
            (RoundState.BURNT, OutcomeCause.CORRELATIONS_LOST),
            (RoundState.RANKED, OutcomeCause.RANKED),
        ],
    )
    def test_once_measured_it_is_closed_and_nothing_else(
        self, tmp_path: Path, wanted: RoundState, cause: OutcomeCause
    ) -> None:
        store = store_with(tmp_path, record_in(RoundState.MEASURED))
        server = server_on(Side.B, store)
        with pytest.raises((AnnouncementMismatch, WrongRound), match="round 1"):
            countersign_outcome(server, KEY, by_a(wanted, cause))
        closed = by_a(RoundState.CLOSED, OutcomeCause.CLOSED)
        both = countersign_outcome(server, KEY, closed)
        assert {signature.signer for signature in both.signatures} == set(OPERATORS)
        assert countersign_outcome(server, KEY, closed) == both
        ended = store.round(KEY)
        assert ended is not None
        assert (ended.state, ended.outcome) == (RoundState.CLOSED, both)

    def test_a_sum_is_not_closed(self, tmp_path: Path) -> None:
        store = store_with(tmp_path, record_in(RoundState.MEASURED, announcement(KEY.study, **SUMS)))
        with pytest.raises(AnnouncementMismatch, match="sums updates; it does not end as closed"):
            countersign_outcome(server_on(Side.B, store), KEY, by_a(RoundState.CLOSED, OutcomeCause.CLOSED))

    def test_it_takes_no_release_set(self, tmp_path: Path) -> None:
        agreed = sign(AGREED, OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)
        record = replace(record_in(RoundState.MEASURED), agreed_set=agreed)
        with pytest.raises(WrongRound, match="never summed"):
            accept_release_set(server_on(Side.B, store_with(tmp_path, record)), record, ALL)

    def announce(self, last: RoundRecord | None, number: int, of: Study = STUDY, **fields: Any) -> None:
        before = None if last is None else LastRound(last.progress, last.announcement.message)
        message = announcement(KEY.study, number, **(MEASURES | fields))
        check_said(message, number, of, KEY.study, OF_FIVE, before, 1_999_999_999.0)

    def test_it_is_announced_first_again_after_a_skip_and_after_a_sum(self) -> None:
        """Taken: the check raises nothing."""
        self.announce(None, 1)
        self.announce(record_in(RoundState.CLOSED), 1)
        self.announce(record_in(RoundState.SKIPPED), 2)
        self.announce(record_in(RoundState.RELEASED, announcement(KEY.study, **SUMS)), 2)

    def test_not_twice_without_a_sum_in_between(self) -> None:
        with pytest.raises(WrongRound, match="measured once, and nothing was summed"):
            self.announce(record_in(RoundState.CLOSED), 2)

    def test_not_under_a_rule_that_measures_nothing_apart(self) -> None:
        with pytest.raises(MalformedMessage, match="which this study does not"):
            self.announce(None, 1, unit_study(OF_FIVE.digest()))

    def test_not_more_often_than_there_can_be_measurements_and_sums(self) -> None:
        most = STUDY.last_round(Purpose.MEASURE)
        assert most == STUDY.last_round(Purpose.UPDATE) == 3 + 2 * STUDY.rounds
        with pytest.raises(WrongRound, match=f"at most {most} rounds of measure"):
            self.announce(record_in(RoundState.SKIPPED), most + 1)

    def test_sites_are_not_ranked_after_it(self) -> None:
        ranks = {"opens": Needs.INNER_PRODUCTS, "purpose": Purpose.RANKING}
        with pytest.raises(WrongRound, match="ranked once, before the first update"):
            self.announce(record_in(RoundState.CLOSED), 2, STUDY.model_copy(update={"ranking": RankingSpec()}), **ranks)

    def test_a_sum_that_opens_pairs_is_refused(self) -> None:
        with pytest.raises(MalformedMessage, match="would open pairs, the rule 'mallows' needs norms"):
            self.announce(None, 1, purpose=Purpose.UPDATE)

    def test_correlations_are_made_for_pairs_first_and_for_norms_after_it(self) -> None:
        record = StudyRecord(KEY.study, Signed[Study](message=STUDY), StudyState.OPEN, "", 1)
        pairs = [(6,) * place + (1,) * 40 for place in range(5)]
        norms = [(() if place == 0 else (6,)) + (1,) * 40 for place in range(5)]
        for last, expected in (
            (None, pairs),
            (record_in(RoundState.COLLECTING), pairs),
            (record_in(RoundState.SKIPPED), pairs),
            (record_in(RoundState.CLOSED), norms),
            (record_in(RoundState.RELEASED, announcement(KEY.study, **SUMS)), norms),
        ):
            assert demand(OF_FIVE, record, last) == expected
