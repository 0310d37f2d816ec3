"""Side A gets the requester's go, hands it over to side B, and serves; B serves what A handed over (section 15).

A stores go before B hears of it, and signs no skip from then on. B signs a skip as long as A has handed nothing over,
whatever the requester gave it: so the two never end a round in two ways, and none waits for the other for ever.
"""

from __future__ import annotations

from protocol.errors import ConflictingMessage, ProtocolViolation, TranscriptMismatch, UnknownResource, WrongRound
from protocol.messages import paths
from protocol.messages.control import Go, Signed
from protocol.messages.peer import HandOver
from protocol.rounds.side_a import Act, Refused, Step
from protocol.rounds.side_b import Move, answer
from protocol.rounds.states import Committed, RoundKey
from servers.http.peer_client import PeerClient
from servers.points import Point
from servers.rounds.collect import roster_of
from servers.rounds.end_round import next_step, round_path
from servers.rounds.halves import take_go
from servers.rounds.release import commit_release
from servers.rounds.standing import at_a, known_round, standing
from servers.server import Server
from servers.store.study_records import RoundRecord, StudyRecord


async def ask_for_go(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> Step:
    """Side A: take B's go; where it has none, what follows. Of deadlines the same holds as for release sets.

    Raises: BadSignature, AnnouncementMismatch, ProtocolViolation, when B shows anything else
    """
    asked_at_s = server.clock()
    try:
        body = await peer.get(round_path(paths.PEER_GO, study, record), "go")
        with server.store.alone(record.key.study):
            now = known_round(server, record.key)
            if now.go is None:
                take_go(server, now, Signed[Go].parse(body))
    except UnknownResource as error:
        state = at_a(server, known_round(server, record.key))
        if isinstance(state, Committed):
            return next_step(server, state, Refused(error), asked_at_s)
    return Act.LOOK_AGAIN


async def hand_over_go(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """Side A: B serves from here on, then this side does too. Raises: ProtocolViolation, when B will not"""
    handed = HandOver(go=record.signed_go)
    try:
        await peer.put(round_path(paths.PEER_GO, study, record), handed.canonical(), "hand_over")
    except (WrongRound, ConflictingMessage, TranscriptMismatch, ProtocolViolation) as error:
        next_step(server, at_a(server, record), Refused(error))
        raise
    server.failpoints.reach(Point.AFTER_GO_HANDED_OVER)
    commit_release(server, study, record, record.output_file)


def serve(server: Server, study: StudyRecord, key: RoundKey, handed: HandOver) -> None:
    """Side B: A has stored this go; serve. Twice as once.

    Raises: BadSignature, AnnouncementMismatch, ConflictingMessage, ProtocolViolation, TranscriptMismatch,
            UnknownResource, WrongRound
    """
    record = take_go(server, known_round(server, key), handed.go)
    if isinstance(answer(standing(server, record), handed, roster_of(server, record)), Move):
        commit_release(server, study, record, record.output_file)


def kept_go(record: RoundRecord) -> Signed[Go]:
    """Side B: what the requester gave it. Raises: UnknownResource"""
    if record.go is None:
        raise UnknownResource("the requester's go is not here")
    return record.go
