"""Server B and the requester want a burnt attempt and a skip of the same attempt, both with both signatures.

Server A goes on to a second attempt after the burn, and opens or sums there; the skip tells every site that nothing
was opened or summed, so that the next round may differ from this one in a single site.

The attack is ``ends-burn-in-private``; here is every order in which the messages may come.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from protocol.errors import MoietyError, ProtocolViolation, UnknownResource, WrongRound
from protocol.messages.control import Announcement, OutcomeCause, Purpose, RoundOutcome, RoundState, Signed, sign
from protocol.parameters import Needs
from protocol.rounds.side_a import End, outcome_of
from protocol.sharing import Side
from tests.unit.parties import announcement
from tests.unit.servers.test_one_end_a_round import FIVE, OPERATORS, PARTIES, Asked, endings, server_on
from tests.unit.servers.test_ranking_once import ANNOUNCED, KEY, STUDY, record_in, store_with

UPDATES = announcement(STUDY.digest(), listed=FIVE[1:])
COUNTS = announcement(STUDY.digest(), listed=FIVE[1:], purpose=Purpose.COUNTS, opens=Needs.NOTHING, model_version=0)


@dataclass
class SignsInPrivate(Asked):
    """Signs whatever A asks for and keeps it; refuses the first time, then answers with what it signed first."""

    kept: list[Signed[RoundOutcome]] = field(default_factory=list)

    async def post(self, path: str, body: bytes, kind: str) -> bytes:
        of_a = Signed[RoundOutcome].parse(body)
        own = sign(of_a.message, OPERATORS[1], PARTIES.keys[OPERATORS[1]].signing).signatures
        self.kept.append(of_a.model_copy(update={"signatures": (*of_a.signatures, *own)}))
        if len(self.kept) == 1:
            raise self.outcome
        return self.kept[0].canonical()


@pytest.mark.parametrize("message", [UPDATES, COUNTS, ANNOUNCED], ids=lambda message: message.purpose.value)
@pytest.mark.parametrize("refusal", [UnknownResource("no such round"), WrongRound("round 1 is over here")], ids=repr)
def test_a_burn_that_side_a_gave_up_is_not_taken_after_all(
    tmp_path: Path, message: Announcement, refusal: MoietyError
) -> None:
    record = record_in(RoundState.LOCKED, message)
    store = store_with(tmp_path, record)
    server, peer = server_on(Side.A, store), SignsInPrivate(refusal)
    burnt = End(outcome_of(record.key, RoundState.BURNT, OutcomeCause.PRODUCTS_REFUSED))
    with pytest.raises(ProtocolViolation, match="another outcome than the one that this side asked it to sign"):
        asyncio.run(endings(server, peer).end(record, burnt))
    assert peer.kept[0].message.outcome is RoundState.BURNT
    assert peer.kept[1].message.outcome in (RoundState.SKIPPED, RoundState.RANKED)
    now = store.current_round(KEY.study)
    assert now is not None
    assert now.key.attempt == 1
    assert now.state is RoundState.LOCKED
    assert now.outcome is not None
    assert now.outcome.message == peer.kept[1].message
