"""The end of a round of ciphertexts: both servers sign one sum, and only then is it served (docs/protocol.md 11).

Either end, this one or a skip, needs both signatures, and each server signs one end a round, durably. So neither server
alone, whoever is on its side, can bring it about that a sum is served of a round that sites believe to be skipped.
"""

from __future__ import annotations

from dataclasses import replace

from protocol.errors import (
    ConflictingMessage,
    UnknownResource,
    WrongRound,
)
from protocol.rounds.side_b import Reply, answer, require_named, require_no_other_end
from protocol.rounds.states import RoundKey, SumAgreed
from protocol.rounds.steps import Act, Refused, Signature
from protocol.wire import paths
from protocol.wire.authentic import require_signatures
from protocol.wire.messages import Signed, SumRelease
from servers.http.peer_client import PeerClient
from servers.points import Point
from servers.rounds.end_round import next_step, round_path
from servers.rounds.release import commit_release
from servers.rounds.standing import at_a, standing
from servers.server import Server
from servers.store.interface import RoundRecord, StudyRecord


def sign_sum_release(server: Server, key: RoundKey, output_file: str, sum_digest: str) -> RoundRecord:
    """Side A: sign that the round ends with this sum, durably. From here on it signs no skip of the round.

    Raises: WrongRound, when it has signed a skip meanwhile
    """
    record = _current(server, key)
    end = standing(server, record).end
    if isinstance(end, SumAgreed):
        return record
    require_no_other_end(record.begun, end)
    signed = server.sign(
        SumRelease(
            study_digest=key.study,
            round=key.round,
            attempt=key.attempt,
            release_digest=record.chosen.message.digest(),
            sum_digest=sum_digest,
        )
    )
    server.failpoints.reach(Point.BEFORE_SUM_SIGNED)
    record = server.store.change_round(key, lambda r: replace(r, sum_release=signed, output_file=output_file))
    server.failpoints.reach(Point.AFTER_SUM_SIGNED)
    return record


async def deliver_sum_release(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """Side A: get B's signature under the sum, then serve it.

    Raises: NotYet, while B does not know the round; ProtocolViolation, when B signs anything else or has signed a skip
    """
    state, roster = at_a(server, record), server.roster
    path = round_path(paths.PEER_SUM_RELEASE, study, record)
    try:
        body = await peer.post(path, record.signed_sum.canonical(), "sum_release")
    except (UnknownResource, WrongRound, ConflictingMessage) as error:
        next_step(server, state, Refused(error))
        return
    both = Signed[SumRelease].parse(body)
    message = require_signatures(both, roster, (roster.operator_a.name, roster.operator_b.name))
    if next_step(server, state, Signature(message)) is Act.TAKE:
        commit_release(server, study, record, record.output_file, both)


def countersign_sum_release(
    server: Server, study: StudyRecord, key: RoundKey, signed: Signed[SumRelease]
) -> Signed[SumRelease]:
    """Side B: sign A's sum, unless this side has signed a skip; one a round, the same again gets the same answer.

    With that the round is released here: B itself has nothing to serve.

    Raises: BadSignature, AnnouncementMismatch, ConflictingMessage, UnknownResource, WrongRound
    """
    message = require_signatures(signed, server.roster, [server.roster.operator_a.name])
    require_named(message, key)
    record = _current(server, key)
    if answer(standing(server, record), message, server.roster) is Reply.AGAIN:
        return record.signed_sum
    both = server.countersign(signed)
    commit_release(server, study, record, None, both)
    return both


def _current(server: Server, key: RoundKey) -> RoundRecord:
    record = server.store.round(key)
    if record is None:
        raise UnknownResource(f"round {key.round}, attempt {key.attempt} is not announced here yet")
    return record
