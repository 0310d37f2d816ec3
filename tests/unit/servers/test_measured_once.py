"""How servers carry out measurements without a sum: closed and never summed. The attacks are ``measured-...``.

Servers decide with their own functions over a real store.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import AnnouncementMismatch, MalformedMessage, WrongRound
from protocol.messages.control import (
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
    sign,
)
from protocol.parameters import Needs
from protocol.rounds.agreement import LastRound, check_said
from protocol.rounds.side_a import outcome_of
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.correlations.wanted import demand
from servers.rounds.outcomes import countersign_outcome
from servers.rounds.release import accept_release_set
from servers.store.migrate import upgrade
from servers.store.sql import SqlStore
from servers.store.study_records import RoundRecord, StudyRecord
from tests.unit.parties import announcement
from tests.unit.parties import study as unit_study
from tests.unit.servers.test_one_end_a_round import AGREED, ALL, FIVE, OPERATORS, PARTIES, server_on
from tests.unit.servers.test_one_end_a_round import ROSTER as OF_FIVE

MALLOWS = RuleSpec(name=RuleName.MALLOWS)
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
