"""A deviating or slow server and a round with tags: go and a skip exclude each other (docs/protocol.md 15).

Unit tests of the state machine; the attacks are ``ends-...`` and ``tags-...``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from protocol.errors import (
    BadSignature,
    ConflictingMessage,
    MoietyError,
    ProtocolViolation,
    UnknownResource,
    WrongRound,
)
from protocol.messages.control import (
    Announcement,
    Go,
    OutcomeCause,
    RoundOutcome,
    RoundState,
    Signed,
    TagSeed,
    require_signatures,
    sign,
)
from protocol.messages.peer import HandOver
from protocol.rounds.side_a import Act, End, Step, outcome_of
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from protocol.tags import shown_seed
from servers.rounds.endings import Endings, ask_for_go, countersign_outcome, hand_over_go, serve
from servers.rounds.release import check_half, commit_half, served_output, take_go
from servers.store.records import RoundRecord, StudyRecord
from tests.unit.parties import REQUESTER, SITES, study
from tests.unit.servers.ending_rounds import server_on, store_with
from tests.unit.tags.halves import DIMENSION, PARTIES, ROSTER, SEED, STUDY, Release, T, by

OF = Release()
KEY = RoundKey(STUDY, 1, 1)
GO = OF.verdict()
COMMITTED_AT_S = 2_000_000_100.0
DEADLINE_S = COMMITTED_AT_S + 60.0
OPERATORS = (ROSTER.operator_a.name, ROSTER.operator_b.name)


@dataclass
class Peer:
    """The other server: what it answers, and what it was asked."""

    answer: bytes | MoietyError = b""
    meanwhile: Callable[[], None] = lambda: None
    asked: list[str] = field(default_factory=list)

    async def _asked(self, path: str, *told: Any) -> bytes:
        self.asked.append(path.rsplit("/", 1)[1])
        self.meanwhile()
        if isinstance(self.answer, MoietyError):
            raise self.answer
        return self.answer

    get = put = post = _asked


def record_at(side: Side) -> RoundRecord:
    """Committed and checked; the requester has said nothing yet."""
    place = list(Side).index(side)
    return RoundRecord(
        KEY,
        RoundState.COMMITTED,
        Signed[Announcement](message=OF.announcement),
        float(OF.announcement.closes_at_s),
        agreed_set=OF.evidence(None).agreed_set,
        release_set=OF.evidence(None).release_set,
        mask_seed=T if side is Side.A else None,
        output_file=None if side is Side.A else "output",
        commitment=OF.signed_commitments()[place],
        committed_at_s=COMMITTED_AT_S,
        tag_seed=shown_seed(SEED),
        tag_check=OF.signed_checks()[place],
    )


@pytest.fixture
def servers(tmp_path: Path) -> dict[Side, Any]:
    of = study(ROSTER.digest(), DIMENSION).model_copy(update={"tags": True})
    return {side: server_on(side, store_with(tmp_path, record_at(side), of, side.value)) for side in Side}


def kept(server: Any) -> RoundRecord:
    found: RoundRecord | None = server.store.round(KEY)
    assert found is not None
    return found


def skip(cause: OutcomeCause = OutcomeCause.GO_MISSING) -> RoundOutcome:
    return outcome_of(KEY, RoundState.SKIPPED, cause)


def skip_of_a() -> Signed[RoundOutcome]:
    return sign(skip(), OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)


def told(server: Any, peer: Peer, record: RoundRecord | None = None) -> tuple[Any, Any, StudyRecord, RoundRecord]:
    return server, cast(Any, peer), server.store.study(STUDY), record or kept(server)


# --- side A -----------------------------------------------------------------------------------------------------------


def test_a_that_took_go_signs_no_skip(servers: dict[Side, Any]) -> None:
    a, peer = servers[Side.A], Peer()
    before = kept(a)
    take_go(a, before, GO)
    with pytest.raises(WrongRound, match="holds the requester's go"):
        asyncio.run(Endings(a, cast(Any, peer)).end(before, End(skip())))
    assert (peer.asked, kept(a).outcome, kept(a).go) == ([], None, GO)


def test_a_serves_only_once_b_took_the_go_and_says_so_if_b_does_not(servers: dict[Side, Any]) -> None:
    a, study_record = servers[Side.A], servers[Side.A].store.study(STUDY)
    take_go(a, kept(a), GO)
    for refusal in (WrongRound("skipped here"), ConflictingMessage("other words"), ProtocolViolation("no")):
        with pytest.raises(ProtocolViolation, match="does not take the requester's go"):
            asyncio.run(hand_over_go(*told(a, Peer(refusal))))
    with pytest.raises(UnknownResource):
        asyncio.run(hand_over_go(*told(a, Peer(UnknownResource("not announced here yet")))))
    assert kept(a).state is RoundState.COMMITTED
    with pytest.raises(UnknownResource):
        served_output(a, study_record, kept(a), SITES[1])
    peer = Peer()
    asyncio.run(hand_over_go(*told(a, peer)))
    assert (peer.asked, kept(a).state) == (["go"], RoundState.RELEASED)


def test_b_is_asked_before_the_deadline_counts_and_a_go_that_comes_meanwhile_stands(servers: dict[Side, Any]) -> None:
    a, now = servers[Side.A], [0.0]
    a.clock = lambda: now[0]

    def asked(at_s: float, peer: Peer) -> Step:
        now[0] = at_s
        return asyncio.run(ask_for_go(*told(a, peer)))

    none = UnknownResource("none here")

    def late() -> None:
        now[0] = DEADLINE_S + 10

    def comes() -> None:
        take_go(a, kept(a), GO)

    assert asked(DEADLINE_S - 1, Peer(none, late)) is Act.LOOK_AGAIN
    assert asked(DEADLINE_S + 1, Peer(none)) == End(skip())
    assert asked(DEADLINE_S + 1, Peer(none, comes)) is Act.LOOK_AGAIN
    assert kept(a).go == GO


def test_a_takes_b_s_go_and_nothing_else_in_its_place(servers: dict[Side, Any]) -> None:
    a = servers[Side.A]
    strange = by(SITES[1], GO.message)
    with pytest.raises(BadSignature):
        asyncio.run(ask_for_go(*told(a, Peer(strange.canonical()))))
    forged = by(REQUESTER, Go(**{**dict(GO.message), "checks": Release(changed=1).verdict().message.checks}))
    with pytest.raises(MoietyError):
        asyncio.run(ask_for_go(*told(a, Peer(forged.canonical()))))
    assert kept(a).go is None
    assert asyncio.run(ask_for_go(*told(a, Peer(GO.canonical())))) is Act.LOOK_AGAIN
    assert asyncio.run(ask_for_go(*told(a, Peer(GO.canonical())))) is Act.LOOK_AGAIN
    assert kept(a).go == GO


# --- side B -----------------------------------------------------------------------------------------------------------


def test_b_that_was_given_a_go_signs_a_skip_and_serves_nothing_after_it(servers: dict[Side, Any]) -> None:
    """A, which signed first, serves nothing; and A's hand-over after it, the requester with it, moves B no more."""
    b = servers[Side.B]
    take_go(b, kept(b), GO)
    assert kept(b).state is RoundState.COMMITTED
    both = countersign_outcome(b, KEY, skip_of_a())
    assert require_signatures(both, ROSTER, OPERATORS).outcome is RoundState.SKIPPED
    with pytest.raises(WrongRound):
        serve(b, b.store.study(STUDY), KEY, HandOver(go=GO))
    assert (kept(b).state, kept(b).output_file) == (RoundState.SKIPPED, None)
    with pytest.raises(UnknownResource):
        served_output(b, b.store.study(STUDY), kept(b), SITES[1])


def test_b_that_serves_signs_no_skip(servers: dict[Side, Any]) -> None:
    b = servers[Side.B]
    for _ in range(2):
        serve(b, b.store.study(STUDY), KEY, HandOver(go=GO))
    assert (kept(b).state, kept(b).output_file) == (RoundState.RELEASED, "output")
    with pytest.raises(WrongRound, match="has been released here"):
        countersign_outcome(b, KEY, skip_of_a())


# --- either side ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", list(Side))
def test_another_word_of_the_requester_is_refused_and_recorded(servers: dict[Side, Any], side: Side) -> None:
    server, other = servers[side], list(Side).index(side.other)
    take_go(server, kept(server), GO)
    checks = list(GO.message.checks)
    again = checks[other].model_copy(update={"signatures": checks[other].signatures * 2})
    checks[other] = again
    second = by(REQUESTER, Go(**{**dict(GO.message), "checks": tuple(checks)}))
    with pytest.raises(ConflictingMessage, match="its first word stands"):
        take_go(server, kept(server), second)
    assert kept(server).go == GO
    assert [refusal.party for refusal in server.store.refusals(STUDY)] == [REQUESTER]


@pytest.mark.parametrize("side", list(Side))
def test_nothing_is_committed_to_after_a_skip(servers: dict[Side, Any], side: Side) -> None:
    server = servers[side]
    server.store.change_round(KEY, lambda r: replace(r, state=RoundState.SKIPPED, commitment=None))
    with pytest.raises(WrongRound, match="possible only when measured"):
        commit_half(server, record_at(side), "00" * 32, None)
    assert kept(server).commitment is None


def test_two_seeds_at_once_are_answered_in_the_same_bytes(servers: dict[Side, Any]) -> None:
    a = servers[Side.A]
    a.store.change_round(KEY, lambda r: replace(r, tag_seed=None, tag_check=None))
    seed = TagSeed(study_digest=STUDY, round=1, attempt=1, seed=shown_seed(SEED).hex())

    async def both() -> list[object]:
        return list(await asyncio.gather(*(check_half(a, kept(a), seed) for _ in range(2))))

    a.store.change_study(STUDY, lambda s: s)
    first, second = asyncio.run(both())
    assert first == second == kept(a).tag_check == OF.signed_checks()[0]


def test_the_check_of_the_mask_says_nothing_of_what_is_summed() -> None:
    """It follows from t and the key alone; the other check is what is left to the sum's error."""
    other = Release(wrong=(0, 5, 0))
    assert other.check(Side.A) == OF.check(Side.A).model_copy(
        update={"commitment_digest": other.check(Side.A).commitment_digest}
    )
    assert other.check(Side.B) != OF.check(Side.B)
