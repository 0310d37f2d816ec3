"""A deviating server and the requester want a sum of ciphertexts and a skip of the same round.

The sites would take the round for one of which nothing was summed, and the next one would sum all of them but one.
Server A alone adds here, so what keeps the two ends apart is that either needs both signatures, and each server signs
one end per round.

Unit tests of the state machine under CKKS; with shares the attacks are ``ends-...``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.errors import (
    AnnouncementMismatch,
    ConflictingMessage,
    MoietyError,
    PeerUnreachable,
    ProtocolViolation,
    UnknownResource,
    WrongRound,
)
from protocol.messages.control import OutcomeCause, RoundState, Signed, SumRelease, require_signatures, sign
from protocol.parameters import Needs
from protocol.rounds.side_a import outcome_of
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.api import peer as peer_routes
from servers.api.authentication import Addressed
from servers.rounds.ciphertexts import countersign_sum_release, deliver_sum_release, sign_sum_release
from servers.rounds.endings import NotYet, countersign_outcome
from servers.rounds.release import served_output
from servers.store.records import RoundRecord
from servers.store.sql import SqlStore
from tests.kit.present import present
from tests.kit.round_messages import sum_release
from tests.unit.parties import announcement
from tests.unit.servers.ending_rounds import (
    AGREED,
    ALL,
    FIVE,
    KEY,
    OPERATORS,
    PARTIES,
    ROSTER,
    STUDY,
    WITHOUT_LAST,
    Asked,
    endings,
    server_on,
    skipped,
    store_with,
)

ANNOUNCED = announcement(STUDY.digest(), opens=Needs.NOTHING, listed=FIVE[1:], ckks_key_id="5c" * 16)
DIGEST, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def record() -> RoundRecord:
    """A round of ciphertexts whose agreed set both have signed, and whose release set is here."""
    agreed = sign(AGREED, OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)
    announced = sign(ANNOUNCED, FIVE[0], PARTIES.keys[FIVE[0]].signing)
    return RoundRecord(KEY, RoundState.MEASURED, announced, 2e9, agreed_set=agreed, release_set=ALL)


@pytest.fixture
def store(tmp_path: Path, record: RoundRecord) -> SqlStore:
    return store_with(tmp_path, record)


def now(store: SqlStore) -> RoundRecord:
    return present(store.round(KEY))


def by(side: Side, message: Any) -> Any:
    name = ROSTER.operator(side).name
    return sign(message, name, PARTIES.keys[name].signing)


def the_sum(digest: str = DIGEST) -> SumRelease:
    return sum_release(ALL.message, digest)


def the_skip(record: RoundRecord) -> Any:
    return outcome_of(record.key, RoundState.SKIPPED, OutcomeCause.NOT_AGREED_IN_TIME)


@dataclass
class Answers(Asked):
    """A peer that answers side A's sum with what it likes."""

    outcome: Exception = field(default_factory=lambda: ProtocolViolation("not asked"))
    answer: Callable[[bytes], bytes] | None = None

    async def post(self, path: str, body: bytes, kind: str) -> bytes:
        self.asked.append(kind)
        if self.answer is None:
            raise self.outcome
        return self.answer(body)


def countersigned(body: bytes) -> bytes:
    of_a = Signed[SumRelease].parse(body)
    return of_a.model_copy(update={"signatures": (*of_a.signatures, *by(Side.B, of_a.message).signatures)}).canonical()


# --- side B deviates --------------------------------------------------------------------------------------------------


def test_a_server_that_signed_a_skip_does_not_sum_because_the_other_says_it_was_released(
    store: SqlStore, record: RoundRecord
) -> None:
    """B keeps the skip with both signatures for the requester, refuses it in public, and shows a release set."""
    store.change_round(KEY, lambda r: replace(r, release_set=None))
    server, peer = server_on(Side.A, store), Asked(WrongRound("round 1 has been released here"), ALL)
    with pytest.raises(ProtocolViolation, match="this side has signed a skip"):
        asyncio.run(endings(server, peer).end(now(store), skipped(now(store), OutcomeCause.RELEASE_SET_MISSING)))
    assert (now(store).state, now(store).release_set) == (RoundState.MEASURED, None)
    assert now(store).outcome is not None
    with pytest.raises(WrongRound, match="has signed that round 1 is skipped"):
        sign_sum_release(server, KEY, "output", DIGEST)


def test_a_server_that_signed_the_sum_signs_no_skip(store: SqlStore) -> None:
    server, peer = server_on(Side.A, store), Asked(ProtocolViolation("not asked"))
    signed = sign_sum_release(server, KEY, "output", DIGEST)
    with pytest.raises(WrongRound, match="has signed the sum of round 1"):
        asyncio.run(endings(server, peer).end(signed, skipped(signed, OutcomeCause.RELEASE_SET_MISSING)))
    assert peer.asked == []
    assert now(store).outcome is None


@pytest.mark.parametrize(
    ("peer", "error"),
    [
        (Answers(PeerUnreachable("away")), PeerUnreachable),
        (Answers(UnknownResource("no such round")), NotYet),
        (Answers(WrongRound("this server has signed that round 1 is skipped")), ProtocolViolation),
        (Answers(ConflictingMessage("ends with another sum")), ProtocolViolation),
        (Answers(answer=lambda body: body), MoietyError),
        (Answers(answer=lambda _: countersigned(by(Side.A, the_sum(OTHER)).canonical())), ProtocolViolation),
    ],
    ids=["away", "knows no round", "skipped", "other sum", "did not sign", "signed another"],
)
def test_no_sum_is_served_before_both_have_signed_it(store: SqlStore, peer: Answers, error: type[Exception]) -> None:
    server = server_on(Side.A, store)
    signed = sign_sum_release(server, KEY, "output", DIGEST)
    study = store.study(KEY.study)
    with pytest.raises(error):
        asyncio.run(deliver_sum_release(server, cast(Any, peer), study, signed))
    assert now(store).state is RoundState.MEASURED
    with pytest.raises(UnknownResource):
        served_output(server, study, now(store), FIVE[1])
    with pytest.raises(UnknownResource, match="not signed by both servers"):
        served_output(server, study, replace(now(store), state=RoundState.RELEASED), FIVE[1])


def test_with_both_signatures_it_is_and_a_restart_signs_the_same_again(store: SqlStore) -> None:
    server, study = server_on(Side.A, store), store.study(KEY.study)
    signed = sign_sum_release(server, KEY, "output", DIGEST)
    assert sign_sum_release(server, KEY, "output", OTHER).sum_release == signed.sum_release
    asyncio.run(deliver_sum_release(server, cast(Any, Answers(answer=countersigned)), study, signed))
    both = present(now(store).sum_release)
    assert require_signatures(both, ROSTER, OPERATORS) == the_sum()
    assert (now(store).state, now(store).output_file) == (RoundState.RELEASED, "output")


# --- side A deviates --------------------------------------------------------------------------------------------------


def test_the_other_server_signs_the_sum_or_the_skip_but_not_both(store: SqlStore, record: RoundRecord) -> None:
    server, study = server_on(Side.B, store), store.study(KEY.study)
    both = countersign_sum_release(server, study, KEY, by(Side.A, the_sum()))
    assert require_signatures(both, ROSTER, OPERATORS) == the_sum()
    assert now(store).state is RoundState.RELEASED
    with pytest.raises(WrongRound, match="has been released here"):
        countersign_outcome(server, KEY, by(Side.A, the_skip(record)))
    assert countersign_sum_release(server, study, KEY, by(Side.A, the_sum())) == both
    with pytest.raises(ConflictingMessage, match="ends with another sum"):
        countersign_sum_release(server, study, KEY, by(Side.A, the_sum(OTHER)))


def test_a_release_set_alone_ends_nothing_at_the_other_server(store: SqlStore, record: RoundRecord) -> None:
    """It used to: then a skip that A had signed in private was refused, and the sum went out all the same."""
    server = server_on(Side.B, store)
    assert now(store).state is RoundState.MEASURED
    both = countersign_outcome(server, KEY, by(Side.A, the_skip(record)))
    assert require_signatures(both, ROSTER, OPERATORS).outcome is RoundState.SKIPPED


@pytest.mark.parametrize(
    ("signed", "error"),
    [
        (by(Side.B, the_sum()), MoietyError),
        (by(Side.A, the_sum().model_copy(update={"round": 2})), AnnouncementMismatch),
    ],
    ids=["not by A", "another round"],
)
def test_the_other_server_signs_no_sum_of_something_else(
    store: SqlStore, signed: Signed[SumRelease], error: type[Exception]
) -> None:
    with pytest.raises(error):
        countersign_sum_release(server_on(Side.B, store), store.study(KEY.study), KEY, signed)
    assert now(store).sum_release is None


def test_a_second_release_set_does_not_replace_the_one_whose_sum_is_signed(store: SqlStore) -> None:
    server, peer = server_on(Side.A, store), Asked(ProtocolViolation("not asked"), WITHOUT_LAST)
    signed = sign_sum_release(server, KEY, "output", DIGEST)
    conflict = ConflictingMessage("B says now that it has another one")
    with pytest.raises(ProtocolViolation, match="there is no other end"):
        asyncio.run(endings(server, peer).adopt_peers_release_set(store.study(KEY.study), signed, conflict))
    assert now(store).release_set == ALL


def test_a_round_of_ciphertexts_is_not_released_by_a_masked_sum(store: SqlStore, record: RoundRecord) -> None:
    """Released without a signed sum, B would sign as many as A likes, and A could serve every site another one."""
    server = server_on(Side.B, store)
    of_even = RoundKey(KEY.study, 2, 1)
    store.change_round(KEY, lambda r: replace(r, state=RoundState.RELEASED))
    announced = sign(ANNOUNCED.model_copy(update={"round": 2}), FIVE[0], PARTIES.keys[FIVE[0]].signing)
    store.add_round(replace(record, key=of_even, announcement=announced))
    held: Any = SimpleNamespace(round=store.round)
    at = Addressed(server, store.study(KEY.study).name, of_even.round, of_even.attempt)
    with pytest.raises(WrongRound, match="one of ciphertexts"):
        asyncio.run(peer_routes.get_masked_sum(server, held, at))
    kept = present(store.round(of_even))
    assert (kept.state, kept.mask_seed) == (RoundState.MEASURED, None)
