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
from protocol.rounds.agreement import check_said
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
from tests.unit.parties import announcement
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

MALLOWS = unit_study(ROSTER.digest()).model_copy(update={"rule": RuleSpec(name=RuleName.MALLOWS)})
RANKED = unit_study(ROSTER.digest()).model_copy(update={"ranking": RankingSpec()})
KEY = RoundKey(RANKED.digest(), 1, 1)
LISTED: dict[str, Any] = {"listed": FIVE[1:]}
MEASURES = {"opens": Needs.PAIRS, "purpose": Purpose.MEASURE, "model_version": 0} | LISTED
RANKS = {"opens": Needs.INNER_PRODUCTS, "purpose": Purpose.RANKING, "model_version": 0} | LISTED
SUMS = {"opens": Needs.NORMS} | LISTED
CAUSES = {
    RoundState.SKIPPED: OutcomeCause.NOT_AGREED_IN_TIME,
    RoundState.BURNT: OutcomeCause.CORRELATIONS_LOST,
    RoundState.RANKED: OutcomeCause.RANKED,
    RoundState.CLOSED: OutcomeCause.CLOSED,
}
ONCE = [(MALLOWS, MEASURES, RoundState.CLOSED), (RANKED, RANKS, RoundState.RANKED)]
once = pytest.mark.parametrize(("of", "opens", "ends_as"), ONCE, ids=["measured", "ranked"])


def record_in(state: RoundState, of: Study = RANKED, message: dict[str, Any] = RANKS) -> RoundRecord:
    announced = announcement(of.digest(), **message)
    return RoundRecord(
        RoundKey(of.digest(), 1, 1), state, Signed[Announcement](message=announced), float(announced.closes_at_s)
    )


@once
def test_a_server_that_holds_an_opening_signs_its_own_end_and_no_other(
    tmp_path: Path, of: Study, opens: dict[str, Any], ends_as: RoundState
) -> None:
    record = record_in(RoundState.MEASURED, of, opens)
    store = store_with(tmp_path, record, of)
    server = server_on(Side.B, store)
    for wanted in CAUSES.keys() - {ends_as}:
        with pytest.raises((AnnouncementMismatch, WrongRound), match="round 1"):
            countersign_outcome(server, record.key, by_a(record.key, wanted, CAUSES[wanted]))
    end = by_a(record.key, ends_as, CAUSES[ends_as])
    both = countersign_outcome(server, record.key, end)
    assert {signature.signer for signature in both.signatures} == set(OPERATORS)
    assert countersign_outcome(server, record.key, end) == both
    ended = present(store.round(record.key))
    assert (ended.state, ended.outcome) == (ends_as, both)


@once
def test_a_round_of_updates_does_not_end_so(
    tmp_path: Path, of: Study, opens: dict[str, Any], ends_as: RoundState
) -> None:
    record = record_in(RoundState.MEASURED, of, SUMS)
    with pytest.raises(AnnouncementMismatch, match=f"sums updates; it does not end as {ends_as}"):
        countersign_outcome(
            server_on(Side.B, store_with(tmp_path, record, of)), record.key, by_a(record.key, ends_as, CAUSES[ends_as])
        )


@once
def test_it_takes_no_release_set(tmp_path: Path, of: Study, opens: dict[str, Any], ends_as: RoundState) -> None:
    agreed = sign(AGREED, OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)
    record = replace(record_in(RoundState.MEASURED, of, opens), agreed_set=agreed)
    with pytest.raises(WrongRound, match="never summed"):
        accept_release_set(server_on(Side.B, store_with(tmp_path, record, of)), record, ALL)


def announce(of: Study, last: RoundRecord | None, number: int, fields: dict[str, Any]) -> None:
    """Raises: what the announcement is refused for"""
    before = None if last is None else last.begun
    check_said(announcement(of.digest(), number, **fields), number, of, of.digest(), ROSTER, before, 1_999_999_999.0)


@once
def test_it_is_announced_first_again_and_after_a_skip(of: Study, opens: dict[str, Any], ends_as: RoundState) -> None:
    """Taken: the check raises nothing. A measurement comes again after a sum, too."""
    announce(of, None, 1, opens)
    announce(of, record_in(ends_as, of, opens), 1, opens)
    announce(of, record_in(RoundState.SKIPPED, of, opens), 2, opens)
    if ends_as is RoundState.CLOSED:
        announce(of, record_in(RoundState.RELEASED, of, SUMS), 2, opens)


_MOST_MEASURED = 3 + 2 * MALLOWS.rounds
_ONCE_RANKED = "ranked once, before the first update"


@pytest.mark.parametrize(
    ("of", "last", "number", "fields", "said"),
    [
        (MALLOWS, (RoundState.CLOSED, MEASURES), 2, MEASURES, "measured once, and nothing was summed"),
        (
            MALLOWS,
            (RoundState.SKIPPED, MEASURES),
            _MOST_MEASURED + 1,
            MEASURES,
            f"at most {_MOST_MEASURED} rounds",
        ),
        (MALLOWS, None, 1, SUMS | {"opens": Needs.PAIRS}, "would open pairs, the rule 'mallows' needs norms"),
        (unit_study(ROSTER.digest()), None, 1, MEASURES, "which this study does not"),
        (MALLOWS.model_copy(update={"ranking": RankingSpec()}), (RoundState.CLOSED, MEASURES), 2, RANKS, _ONCE_RANKED),
        (RANKED, (RoundState.RANKED, RANKS), 2, RANKS, _ONCE_RANKED),
        (RANKED, (RoundState.RELEASED, SUMS), 2, RANKS, _ONCE_RANKED),
        (RANKED, (RoundState.SKIPPED, SUMS), 2, RANKS, _ONCE_RANKED),
        (RANKED, (RoundState.SKIPPED, RANKS), 4, RANKS, "at most 3 rounds of ranking"),
        (RANKED.model_copy(update={"ranking": None}), None, 1, RANKS, "which this study does not"),
    ],
)
def test_not_twice_too_often_or_in_another_study(
    of: Study, last: tuple[RoundState, dict[str, Any]] | None, number: int, fields: dict[str, Any], said: str
) -> None:
    before = None if last is None else record_in(last[0], of, last[1])
    with pytest.raises((MalformedMessage, WrongRound), match=said):
        announce(of, before, number, fields)


def test_as_often_as_a_study_may_try() -> None:
    assert MALLOWS.last_round(Purpose.MEASURE) == MALLOWS.last_round(Purpose.UPDATE) == _MOST_MEASURED
    announce(RANKED, record_in(RoundState.SKIPPED), 3, RANKS)


def test_no_opening_is_made_once_the_skip_is_signed(tmp_path: Path) -> None:
    """Products were under way when A asked for the skip: what B was about to store is thrown away."""
    record = record_in(RoundState.LOCKED)
    store = store_with(tmp_path, record, RANKED)
    server = server_on(Side.B, store)
    assert opened(standing(server, record)) is RoundState.MEASURED
    countersign_outcome(server, KEY, by_a(KEY, RoundState.SKIPPED, CAUSES[RoundState.SKIPPED]))
    with pytest.raises(WrongRound, match="became skipped meanwhile; its opening was not made"):
        opened(standing(server, store.round(KEY) or record))


@pytest.mark.parametrize("given_up", [RoundState.SKIPPED, RoundState.BURNT])
def test_a_server_that_lost_its_half_ends_the_ranking_when_the_peer_holds_the_other(
    tmp_path: Path, given_up: RoundState
) -> None:
    record = record_in(RoundState.LOCKED)
    store = store_with(tmp_path, record, RANKED)
    server, peer = server_on(Side.A, store), Asked(WrongRound("round 1 has been measured here"))
    step = End(outcome_of(record.key, given_up, CAUSES[given_up]))
    with pytest.raises(Exception, match="has been measured here"):
        asyncio.run(endings(server, peer).end(record, step))
    assert peer.asked == ["outcome", "outcome"]
    kept = present(store.round(KEY))
    assert kept.outcome is not None
    assert (kept.outcome.message.outcome, kept.outcome.message.cause) == (
        RoundState.RANKED,
        OutcomeCause.OPENING_AT_ONE_SERVER,
    )


def test_a_peer_that_never_heard_of_the_round_does_not_make_it_ranked(tmp_path: Path) -> None:
    record = record_in(RoundState.COLLECTING)
    store = store_with(tmp_path, record, RANKED)
    peer = Asked(WrongRound("round 1, attempt 1 is not known here yet"))
    asyncio.run(endings(server_on(Side.A, store), peer).end(record, skipped(record, OutcomeCause.REQUESTER_MISSING)))
    assert getattr(store.round(KEY), "state", None) is RoundState.SKIPPED


def test_the_peer_that_measured_it_signs_that_it_ranked(tmp_path: Path) -> None:
    record = record_in(RoundState.MEASURED)
    store = store_with(tmp_path, record, RANKED)

    class Signs(Asked):
        async def post(self, path: str, body: bytes, kind: str) -> bytes:
            of_a = Signed[RoundOutcome].parse(body)
            own = sign(of_a.message, OPERATORS[1], PARTIES.keys[OPERATORS[1]].signing).signatures
            return of_a.model_copy(update={"signatures": (*of_a.signatures, *own)}).canonical()

    ending = endings(server_on(Side.A, store), Signs(UnknownResource("not asked")))
    ranked = End(outcome_of(record.key, RoundState.RANKED, OutcomeCause.RANKED))
    asyncio.run(ending.end(record, ranked))
    asyncio.run(ending.end(store.round(KEY) or record, ranked))
    ended = present(store.round(KEY))
    assert (ended.state, getattr(ended.outcome, "message", None)) == (
        RoundState.RANKED,
        ranked.outcome,
    )


def test_correlations_are_made_for_the_ranking_until_it_ended() -> None:
    record = StudyRecord(KEY.study, Signed[Study](message=RANKED), StudyState.OPEN, "", 1)
    assert ranks_next(record, None)
    assert ranks_next(record, record_in(RoundState.COLLECTING))
    assert ranks_next(record, record_in(RoundState.SKIPPED))
    assert not ranks_next(record, record_in(RoundState.RANKED))
    third = replace(record_in(RoundState.SKIPPED), key=RoundKey(KEY.study, MOST_RANKING_ROUNDS, 1))
    assert not ranks_next(record, third)
    assert ranks_next(record, replace(third, state=RoundState.COLLECTING))
    plain = StudyRecord(KEY.study, Signed[Study](message=unit_study(ROSTER.digest())), StudyState.OPEN, "", 1)
    assert not ranks_next(plain, None)
    ranking = ((), *[(2 * 18,)] * 4)
    assert demand(ROSTER, record, None) == [of + (1,) * 40 for of in ranking]
    update = ((), *[(6,)] * 4)
    assert demand(ROSTER, record, record_in(RoundState.RANKED)) == [of + (1,) * 40 for of in update]


def test_correlations_are_made_for_pairs_first_and_for_norms_after_it() -> None:
    record = StudyRecord(MALLOWS.digest(), Signed[Study](message=MALLOWS), StudyState.OPEN, "", 1)
    pairs = [(6,) * place + (1,) * 40 for place in range(5)]
    norms = [(() if place == 0 else (6,)) + (1,) * 40 for place in range(5)]
    for last, expected in (
        (None, pairs),
        (record_in(RoundState.COLLECTING, MALLOWS, MEASURES), pairs),
        (record_in(RoundState.SKIPPED, MALLOWS, MEASURES), pairs),
        (record_in(RoundState.CLOSED, MALLOWS, MEASURES), norms),
        (record_in(RoundState.RELEASED, MALLOWS, SUMS), norms),
    ):
        assert demand(ROSTER, record, last) == expected


def test_masked_vectors_may_be_as_long_as_a_rankings() -> None:
    """Per site 2 L = 36 elements and one a projection of the range check, against 6 for an update's distance."""
    assert most_elements(RANKED, 3) == 3 * (2 * 18 + 40)
    assert most_elements(RANKED.model_copy(update={"ranking": None}), 3) == 3 * (6 + 40)
