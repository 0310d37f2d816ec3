"""Measurements without a sum and rankings, once: closed, never summed. Attacks: ``measured-...``, ``ranking-twice``."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import AnnouncementMismatch, MalformedMessage, UnknownResource, WrongRound
from protocol.messages.control import (
    MOST_RANKING_ROUNDS,
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
from protocol.rounds.side_a import End, outcome_of
from protocol.rounds.side_b import opened
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.correlations import demand, ranks_next
from servers.rounds.endings import countersign_outcome
from servers.rounds.release import accept_release_set
from servers.rounds.sketches import most_elements
from servers.rounds.state import standing
from servers.store.records import RoundRecord, StudyRecord
from tests.kit.present import present
from tests.unit.parties import announcement, study
from tests.unit.parties import study as unit_study
from tests.unit.servers.ending_rounds import (
    AGREED,
    ALL,
    FIVE,
    OPERATORS,
    PARTIES,
    ROSTER,
    Asked,
    by_a,
    endings,
    server_on,
    skipped,
    store_with,
)

# --- measured once ----------------------------------------------------------------------------------------------------

MALLOWS = RuleSpec(name=RuleName.MALLOWS)
STUDY = unit_study(ROSTER.digest()).model_copy(update={"rule": MALLOWS})
KEY = RoundKey(STUDY.digest(), 1, 1)
MEASURES: dict[str, Any] = {"opens": Needs.PAIRS, "purpose": Purpose.MEASURE, "model_version": 0, "listed": FIVE[1:]}
SUMS: dict[str, Any] = {"opens": Needs.NORMS, "listed": FIVE[1:]}
ANNOUNCED = announcement(STUDY.digest(), **MEASURES)


def record_in(state: RoundState, message: Announcement = ANNOUNCED) -> RoundRecord:
    return RoundRecord(KEY, state, Signed[Announcement](message=message), float(message.closes_at_s))


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
        store = store_with(tmp_path, record_in(RoundState.MEASURED), STUDY)
        server = server_on(Side.B, store)
        with pytest.raises((AnnouncementMismatch, WrongRound), match="round 1"):
            countersign_outcome(server, KEY, by_a(KEY, wanted, cause))
        closed = by_a(KEY, RoundState.CLOSED, OutcomeCause.CLOSED)
        both = countersign_outcome(server, KEY, closed)
        assert {signature.signer for signature in both.signatures} == set(OPERATORS)
        assert countersign_outcome(server, KEY, closed) == both
        ended = present(store.round(KEY))
        assert (ended.state, ended.outcome) == (RoundState.CLOSED, both)

    def test_a_sum_is_not_closed(self, tmp_path: Path) -> None:
        store = store_with(tmp_path, record_in(RoundState.MEASURED, announcement(KEY.study, **SUMS)), STUDY)
        with pytest.raises(AnnouncementMismatch, match="sums updates; it does not end as closed"):
            countersign_outcome(server_on(Side.B, store), KEY, by_a(KEY, RoundState.CLOSED, OutcomeCause.CLOSED))

    def test_it_takes_no_release_set(self, tmp_path: Path) -> None:
        agreed = sign(AGREED, OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)
        record = replace(record_in(RoundState.MEASURED), agreed_set=agreed)
        with pytest.raises(WrongRound, match="never summed"):
            accept_release_set(server_on(Side.B, store_with(tmp_path, record, STUDY)), record, ALL)

    def announce(self, last: RoundRecord | None, number: int, of: Study = STUDY, **fields: Any) -> None:
        before = None if last is None else LastRound(last.progress, last.announcement.message)
        message = announcement(KEY.study, number, **(MEASURES | fields))
        check_said(message, number, of, KEY.study, ROSTER, before, 1_999_999_999.0)

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
            self.announce(None, 1, unit_study(ROSTER.digest()))

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
            assert demand(ROSTER, record, last) == expected


# --- ranking once -----------------------------------------------------------------------------------------------------

RANKED = study(ROSTER.digest()).model_copy(update={"ranking": RankingSpec()})
RANKED_KEY = RoundKey(RANKED.digest(), 1, 1)
RANKS: dict[str, Any] = {
    "opens": Needs.INNER_PRODUCTS,
    "purpose": Purpose.RANKING,
    "model_version": 0,
    "listed": FIVE[1:],
}
RANKS_NEXT = announcement(RANKED.digest(), **RANKS)


def ranking_in(state: RoundState, message: Announcement = RANKS_NEXT) -> RoundRecord:
    signed = Signed[Announcement](message=message)
    return RoundRecord(RANKED_KEY, state, signed, float(message.closes_at_s))


CAUSES = {
    RoundState.SKIPPED: OutcomeCause.NOT_AGREED_IN_TIME,
    RoundState.BURNT: OutcomeCause.CORRELATIONS_LOST,
    RoundState.RANKED: OutcomeCause.RANKED,
}


@pytest.mark.parametrize("wanted", [RoundState.SKIPPED, RoundState.BURNT])
def test_a_server_that_holds_an_opening_signs_neither_skip_nor_burn(tmp_path: Path, wanted: RoundState) -> None:
    record = ranking_in(RoundState.MEASURED)
    store = store_with(tmp_path, record, RANKED)
    server = server_on(Side.B, store)
    with pytest.raises(WrongRound, match="round 1"):
        countersign_outcome(server, RANKED_KEY, by_a(RANKED_KEY, wanted, CAUSES[wanted]))
    both = countersign_outcome(server, RANKED_KEY, by_a(RANKED_KEY, RoundState.RANKED, CAUSES[RoundState.RANKED]))
    assert {signature.signer for signature in both.signatures} == set(OPERATORS)
    ended = present(store.round(RANKED_KEY))
    assert (ended.state, ended.outcome) == (RoundState.RANKED, both)


def test_before_that_it_is_skipped_like_any_round(tmp_path: Path) -> None:
    record = ranking_in(RoundState.LOCKED)
    store = store_with(tmp_path, record, RANKED)
    countersign_outcome(
        server_on(Side.B, store), RANKED_KEY, by_a(RANKED_KEY, RoundState.SKIPPED, CAUSES[RoundState.SKIPPED])
    )
    assert getattr(store.round(RANKED_KEY), "state", None) is RoundState.SKIPPED


def test_no_opening_is_made_once_the_skip_is_signed(tmp_path: Path) -> None:
    """Products were under way when A asked for the skip: what B was about to store is thrown away."""
    record = ranking_in(RoundState.LOCKED)
    store = store_with(tmp_path, record, RANKED)
    server = server_on(Side.B, store)
    assert opened(standing(server, record)) is RoundState.MEASURED
    countersign_outcome(server, RANKED_KEY, by_a(RANKED_KEY, RoundState.SKIPPED, CAUSES[RoundState.SKIPPED]))
    with pytest.raises(WrongRound, match="became skipped meanwhile; its opening was not made"):
        opened(standing(server, store.round(RANKED_KEY) or record))


@pytest.mark.parametrize("given_up", [RoundState.SKIPPED, RoundState.BURNT])
def test_a_server_that_lost_its_half_ends_the_ranking_when_the_peer_holds_the_other(
    tmp_path: Path, given_up: RoundState
) -> None:
    record = ranking_in(RoundState.LOCKED)
    store = store_with(tmp_path, record, RANKED)
    server, peer = server_on(Side.A, store), Asked(WrongRound("round 1 has been measured here"))
    step = End(outcome_of(record.key, given_up, CAUSES[given_up]))
    with pytest.raises(Exception, match="has been measured here"):
        asyncio.run(endings(server, peer).end(record, step))
    assert peer.asked == ["outcome", "outcome"]
    kept = present(store.round(RANKED_KEY))
    assert kept.outcome is not None
    assert (kept.outcome.message.outcome, kept.outcome.message.cause) == (
        RoundState.RANKED,
        OutcomeCause.OPENING_AT_ONE_SERVER,
    )


def test_a_peer_that_never_heard_of_the_round_does_not_make_it_ranked(tmp_path: Path) -> None:
    record = ranking_in(RoundState.COLLECTING)
    store = store_with(tmp_path, record, RANKED)
    peer = Asked(WrongRound("round 1, attempt 1 is not known here yet"))
    asyncio.run(endings(server_on(Side.A, store), peer).end(record, skipped(record, OutcomeCause.REQUESTER_MISSING)))
    assert getattr(store.round(RANKED_KEY), "state", None) is RoundState.SKIPPED


def test_the_peer_that_measured_it_signs_that_it_ranked(tmp_path: Path) -> None:
    record = ranking_in(RoundState.MEASURED)
    store = store_with(tmp_path, record, RANKED)

    class Signs(Asked):
        async def post(self, path: str, body: bytes, kind: str) -> bytes:
            of_a = Signed[RoundOutcome].parse(body)
            own = sign(of_a.message, OPERATORS[1], PARTIES.keys[OPERATORS[1]].signing).signatures
            return of_a.model_copy(update={"signatures": (*of_a.signatures, *own)}).canonical()

    ending = endings(server_on(Side.A, store), Signs(UnknownResource("not asked")))
    ranked = End(outcome_of(record.key, RoundState.RANKED, OutcomeCause.RANKED))
    asyncio.run(ending.end(record, ranked))
    asyncio.run(ending.end(store.round(RANKED_KEY) or record, ranked))
    ended = present(store.round(RANKED_KEY))
    assert (ended.state, getattr(ended.outcome, "message", None)) == (
        RoundState.RANKED,
        ranked.outcome,
    )


def test_a_round_of_updates_cannot_be_ended_as_a_ranking(tmp_path: Path) -> None:
    record = ranking_in(RoundState.MEASURED, announcement(RANKED.digest(), listed=FIVE[1:]))
    store = store_with(tmp_path, record, RANKED)
    with pytest.raises(AnnouncementMismatch, match="does not end as ranked"):
        countersign_outcome(
            server_on(Side.B, store), RANKED_KEY, by_a(RANKED_KEY, RoundState.RANKED, CAUSES[RoundState.RANKED])
        )


def test_a_ranking_takes_no_release_set(tmp_path: Path) -> None:
    agreed = sign(AGREED, OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)
    record = replace(ranking_in(RoundState.MEASURED), agreed_set=agreed)
    store = store_with(tmp_path, record, RANKED)
    with pytest.raises(WrongRound, match="never summed"):
        accept_release_set(server_on(Side.B, store), record, ALL)


class TestAnnounced:
    """Announcements of a ranking that a server takes, and when."""

    def announce(self, last: RoundRecord | None, number: int, of: Study = RANKED) -> None:
        before = None if last is None else LastRound(last.progress, last.announcement.message)
        check_said(
            announcement(RANKED_KEY.study, number, **RANKS),
            number,
            of,
            RANKED_KEY.study,
            ROSTER,
            before,
            1_999_999_999.0,
        )

    def test_first_again_and_after_a_skip(self) -> None:
        """Taken: the check raises nothing."""
        self.announce(None, 1)
        self.announce(ranking_in(RoundState.RANKED), 1)
        self.announce(ranking_in(RoundState.SKIPPED), 2)

    @pytest.mark.parametrize(
        "last",
        [
            ranking_in(RoundState.RANKED),
            ranking_in(RoundState.RELEASED, announcement(RANKED.digest(), listed=FIVE[1:])),
            ranking_in(RoundState.SKIPPED, announcement(RANKED.digest(), listed=FIVE[1:])),
        ],
    )
    def test_not_once_it_ended_nor_after_an_update(self, last: RoundRecord) -> None:
        with pytest.raises(WrongRound, match="ranked once, before the first update"):
            self.announce(last, 2)

    def test_no_more_often_than_the_study_may_try(self) -> None:
        self.announce(ranking_in(RoundState.SKIPPED), 3)
        with pytest.raises(WrongRound, match="at most 3 rounds of ranking"):
            self.announce(ranking_in(RoundState.SKIPPED), 4)

    def test_not_in_a_study_without_one(self) -> None:
        with pytest.raises(MalformedMessage, match="which this study does not"):
            self.announce(None, 1, RANKED.model_copy(update={"ranking": None}))


def test_correlations_are_made_for_the_ranking_until_it_ended() -> None:
    record = StudyRecord(RANKED_KEY.study, Signed[Study](message=RANKED), StudyState.OPEN, "", 1)
    assert ranks_next(record, None)
    assert ranks_next(record, ranking_in(RoundState.COLLECTING))
    assert ranks_next(record, ranking_in(RoundState.SKIPPED))
    assert not ranks_next(record, ranking_in(RoundState.RANKED))
    third = replace(ranking_in(RoundState.SKIPPED), key=RoundKey(RANKED_KEY.study, MOST_RANKING_ROUNDS, 1))
    assert not ranks_next(record, third)
    assert ranks_next(record, replace(third, state=RoundState.COLLECTING))
    plain = StudyRecord(RANKED_KEY.study, Signed[Study](message=study(ROSTER.digest())), StudyState.OPEN, "", 1)
    assert not ranks_next(plain, None)
    ranking = ((), *[(2 * 18,)] * 4)
    assert demand(ROSTER, record, None) == [of + (1,) * 40 for of in ranking]
    update = ((), *[(6,)] * 4)
    assert demand(ROSTER, record, ranking_in(RoundState.RANKED)) == [of + (1,) * 40 for of in update]


def test_masked_vectors_may_be_as_long_as_a_rankings() -> None:
    """Per site 2 L = 36 elements and one a projection of the range check, against 6 for an update's distance."""
    assert most_elements(RANKED, 3) == 3 * (2 * 18 + 40)
    assert most_elements(RANKED.model_copy(update={"ranking": None}), 3) == 3 * (6 + 40)
