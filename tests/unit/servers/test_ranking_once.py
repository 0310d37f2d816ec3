"""A deviating server and the requester try to have a ranking measured and then skipped, so that sites allow another.

Each ranking gives the requester one number of its choice about every site's model; a second one would be a second.

The attacks are ``ranking-twice``, ``ends-skip-after-opening`` and ``ends-burn-after-opening``; here are the states.
"""

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
from servers.correlations.wanted import demand, ranks_next
from servers.rounds.outcomes import countersign_outcome
from servers.rounds.release import accept_release_set
from servers.rounds.sketches import most_elements
from servers.rounds.standing import standing
from servers.store.migrate import upgrade
from servers.store.sql import SqlStore
from servers.store.study_records import RoundRecord, StudyRecord
from tests.unit.parties import announcement, study
from tests.unit.servers.test_one_end_a_round import (
    AGREED,
    ALL,
    FIVE,
    OPERATORS,
    PARTIES,
    ROSTER,
    Asked,
    endings,
    server_on,
    skipped,
)

STUDY = study(ROSTER.digest()).model_copy(update={"ranking": RankingSpec()})
KEY = RoundKey(STUDY.digest(), 1, 1)
RANKS: dict[str, Any] = {
    "opens": Needs.INNER_PRODUCTS,
    "purpose": Purpose.RANKING,
    "model_version": 0,
    "listed": FIVE[1:],
}
ANNOUNCED = announcement(STUDY.digest(), **RANKS)


def record_in(state: RoundState, message: Announcement = ANNOUNCED) -> RoundRecord:
    signed = Signed[Announcement](message=message)
    return RoundRecord(KEY, state, signed, float(message.closes_at_s))


def store_with(folder: Path, record: RoundRecord, of: Study = STUDY) -> SqlStore:
    url = f"sqlite:///{folder / 'store.db'}"
    upgrade(url)
    made = SqlStore(url, lambda _: None)
    made.add_study(StudyRecord(KEY.study, Signed[Study](message=of), StudyState.OPEN, "", 1))
    made.add_round(record)
    return made


CAUSES = {
    RoundState.SKIPPED: OutcomeCause.NOT_AGREED_IN_TIME,
    RoundState.BURNT: OutcomeCause.CORRELATIONS_LOST,
    RoundState.RANKED: OutcomeCause.RANKED,
}


def by_a(record: RoundRecord, state: RoundState) -> Signed[RoundOutcome]:
    return sign(outcome_of(record.key, state, CAUSES[state]), OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)


@pytest.mark.parametrize("wanted", [RoundState.SKIPPED, RoundState.BURNT])
def test_a_server_that_holds_an_opening_signs_neither_skip_nor_burn(tmp_path: Path, wanted: RoundState) -> None:
    record = record_in(RoundState.MEASURED)
    store = store_with(tmp_path, record)
    server = server_on(Side.B, store)
    with pytest.raises(WrongRound, match="round 1"):
        countersign_outcome(server, KEY, by_a(record, wanted))
    both = countersign_outcome(server, KEY, by_a(record, RoundState.RANKED))
    assert {signature.signer for signature in both.signatures} == set(OPERATORS)
    ended = store.round(KEY)
    assert ended is not None
    assert (ended.state, ended.outcome) == (RoundState.RANKED, both)


def test_before_that_it_is_skipped_like_any_round(tmp_path: Path) -> None:
    record = record_in(RoundState.LOCKED)
    store = store_with(tmp_path, record)
    countersign_outcome(server_on(Side.B, store), KEY, by_a(record, RoundState.SKIPPED))
    assert getattr(store.round(KEY), "state", None) is RoundState.SKIPPED


def test_no_opening_is_made_once_the_skip_is_signed(tmp_path: Path) -> None:
    """Products were under way when A asked for the skip: what B was about to store is thrown away."""
    record = record_in(RoundState.LOCKED)
    store = store_with(tmp_path, record)
    server = server_on(Side.B, store)
    assert opened(standing(server, record)) is RoundState.MEASURED
    countersign_outcome(server, KEY, by_a(record, RoundState.SKIPPED))
    with pytest.raises(WrongRound, match="became skipped meanwhile; its opening was not made"):
        opened(standing(server, store.round(KEY) or record))


@pytest.mark.parametrize("given_up", [RoundState.SKIPPED, RoundState.BURNT])
def test_a_server_that_lost_its_half_ends_the_ranking_when_the_peer_holds_the_other(
    tmp_path: Path, given_up: RoundState
) -> None:
    record = record_in(RoundState.LOCKED)
    store = store_with(tmp_path, record)
    server, peer = server_on(Side.A, store), Asked(WrongRound("round 1 has been measured here"))
    step = End(outcome_of(record.key, given_up, CAUSES[given_up]))
    with pytest.raises(Exception, match="has been measured here"):
        asyncio.run(endings(server, peer).end(record, step))
    assert peer.asked == ["outcome", "outcome"]
    kept = store.round(KEY)
    assert kept is not None
    assert kept.outcome is not None
    assert (kept.outcome.message.outcome, kept.outcome.message.cause) == (
        RoundState.RANKED,
        OutcomeCause.OPENING_AT_ONE_SERVER,
    )


def test_a_peer_that_never_heard_of_the_round_does_not_make_it_ranked(tmp_path: Path) -> None:
    record = record_in(RoundState.COLLECTING)
    store = store_with(tmp_path, record)
    peer = Asked(WrongRound("round 1, attempt 1 is not known here yet"))
    asyncio.run(endings(server_on(Side.A, store), peer).end(record, skipped(record, OutcomeCause.REQUESTER_MISSING)))
    assert getattr(store.round(KEY), "state", None) is RoundState.SKIPPED


def test_the_peer_that_measured_it_signs_that_it_ranked(tmp_path: Path) -> None:
    record = record_in(RoundState.MEASURED)
    store = store_with(tmp_path, record)

    class Signs(Asked):
        async def post(self, path: str, body: bytes, kind: str) -> bytes:
            of_a = Signed[RoundOutcome].parse(body)
            own = sign(of_a.message, OPERATORS[1], PARTIES.keys[OPERATORS[1]].signing).signatures
            return of_a.model_copy(update={"signatures": (*of_a.signatures, *own)}).canonical()

    ending = endings(server_on(Side.A, store), Signs(UnknownResource("not asked")))
    ranked = End(outcome_of(record.key, RoundState.RANKED, OutcomeCause.RANKED))
    asyncio.run(ending.end(record, ranked))
    asyncio.run(ending.end(store.round(KEY) or record, ranked))
    ended = store.round(KEY)
    assert ended is not None
    assert (ended.state, getattr(ended.outcome, "message", None)) == (
        RoundState.RANKED,
        ranked.outcome,
    )


def test_a_round_of_updates_cannot_be_ended_as_a_ranking(tmp_path: Path) -> None:
    record = record_in(RoundState.MEASURED, announcement(STUDY.digest(), listed=FIVE[1:]))
    store = store_with(tmp_path, record)
    with pytest.raises(AnnouncementMismatch, match="does not end as ranked"):
        countersign_outcome(server_on(Side.B, store), KEY, by_a(record, RoundState.RANKED))


def test_a_ranking_takes_no_release_set(tmp_path: Path) -> None:
    agreed = sign(AGREED, OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)
    record = replace(record_in(RoundState.MEASURED), agreed_set=agreed)
    store = store_with(tmp_path, record)
    with pytest.raises(WrongRound, match="never summed"):
        accept_release_set(server_on(Side.B, store), record, ALL)


class TestAnnounced:
    """What a server takes for the announcement of a ranking, and when."""

    def announce(self, last: RoundRecord | None, number: int, of: Study = STUDY) -> None:
        before = None if last is None else LastRound(last.progress, last.announcement.message)
        check_said(announcement(KEY.study, number, **RANKS), number, of, KEY.study, ROSTER, before, 1_999_999_999.0)

    def test_first_again_and_after_a_skip(self) -> None:
        """Taken: the check raises nothing."""
        self.announce(None, 1)
        self.announce(record_in(RoundState.RANKED), 1)
        self.announce(record_in(RoundState.SKIPPED), 2)

    @pytest.mark.parametrize(
        "last",
        [
            record_in(RoundState.RANKED),
            record_in(RoundState.RELEASED, announcement(STUDY.digest(), listed=FIVE[1:])),
            record_in(RoundState.SKIPPED, announcement(STUDY.digest(), listed=FIVE[1:])),
        ],
    )
    def test_not_once_it_ended_nor_after_an_update(self, last: RoundRecord) -> None:
        with pytest.raises(WrongRound, match="ranked once, before the first update"):
            self.announce(last, 2)

    def test_no_more_often_than_the_study_may_try(self) -> None:
        self.announce(record_in(RoundState.SKIPPED), 3)
        with pytest.raises(WrongRound, match="at most 3 rounds of ranking"):
            self.announce(record_in(RoundState.SKIPPED), 4)

    def test_not_in_a_study_without_one(self) -> None:
        with pytest.raises(MalformedMessage, match="which this study does not"):
            self.announce(None, 1, STUDY.model_copy(update={"ranking": None}))


def test_correlations_are_made_for_the_ranking_until_it_ended() -> None:
    record = StudyRecord(KEY.study, Signed[Study](message=STUDY), StudyState.OPEN, "", 1)
    assert ranks_next(record, None)
    assert ranks_next(record, record_in(RoundState.COLLECTING))
    assert ranks_next(record, record_in(RoundState.SKIPPED))
    assert not ranks_next(record, record_in(RoundState.RANKED))
    third = replace(record_in(RoundState.SKIPPED), key=RoundKey(KEY.study, MOST_RANKING_ROUNDS, 1))
    assert not ranks_next(record, third)
    assert ranks_next(record, replace(third, state=RoundState.COLLECTING))
    plain = StudyRecord(KEY.study, Signed[Study](message=study(ROSTER.digest())), StudyState.OPEN, "", 1)
    assert not ranks_next(plain, None)
    ranking = ((), *[(2 * 18,)] * 4)
    assert demand(ROSTER, record, None) == [of + (1,) * 40 for of in ranking]
    update = ((), *[(6,)] * 4)
    assert demand(ROSTER, record, record_in(RoundState.RANKED)) == [of + (1,) * 40 for of in update]


def test_masked_vectors_may_be_as_long_as_a_rankings() -> None:
    """Per site 2 L = 36 elements and one a projection of the range check, against 6 for an update's distance."""
    assert most_elements(STUDY, 3) == 3 * (2 * 18 + 40)
    assert most_elements(STUDY.model_copy(update={"ranking": None}), 3) == 3 * (6 + 40)
