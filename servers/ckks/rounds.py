"""Rounds of ciphertexts: side A collects, agrees and sums alone, side B countersigns (docs/protocol.md 11).

B gets no part of an update, so it cannot confirm what A holds. Its signature says that this is the only agreed set of
the round, and that the set is of listed sites and large enough; later, that this is the round's only end.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from protocol.errors import (
    UnknownResource,
)
from protocol.rounds.side_b import Reply, answer
from protocol.rounds.steps import Act, Refused, Signature
from protocol.rounds.transitions import RoundEvent
from protocol.wire import paths
from protocol.wire.authentic import require_signatures
from protocol.wire.messages import AgreedSet, Signed
from servers.ckks.output import write_sum
from servers.ckks.release import sign_sum_release
from servers.http.peer_client import PeerClient
from servers.points import Point
from servers.rounds.end_round import next_step, round_path
from servers.rounds.release import output_name
from servers.rounds.standing import at_a, standing
from servers.server import Server
from servers.store.interface import RoundRecord, StudyRecord


async def countersigned_set(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """Side A: get B's signature under the set; nothing is measured after it. Raises: NotYet, ProtocolViolation"""
    state_at_a, roster = at_a(server, record), server.roster
    try:
        body = await peer.post(
            round_path(paths.PEER_AGREED_SET, study, record), record.agreed.canonical(), "agreed_set"
        )
    except UnknownResource as error:
        next_step(server, state_at_a, Refused(error))
        return
    both = Signed[AgreedSet].parse(body)
    message = require_signatures(both, roster, (roster.operator_a.name, roster.operator_b.name))
    if next_step(server, state_at_a, Signature(message)) is Act.TAKE:
        state = record.begun.after(RoundEvent.MEASURED)
        server.store.change_round(record.key, lambda r: replace(r, state=state, agreed_set=both))


async def sum_up(server: Server, study: StudyRecord, record: RoundRecord) -> None:
    """Side A: both servers hold one release set; add it up and sign the sum."""
    name = output_name(record)
    digest = await asyncio.to_thread(write_sum, server, study, record, name)
    sign_sum_release(server, record.key, name, digest)


def countersign_agreed_set(server: Server, record: RoundRecord, signed: Signed[AgreedSet]) -> Signed[AgreedSet]:
    """Side B: sign A's agreed set of a round of ciphertexts; one a round, the same again gets the same answer.

    Raises: BadSignature, AnnouncementMismatch, ConflictingMessage, ProtocolViolation, WrongRound
    """
    agreed = require_signatures(signed, server.roster, [server.roster.operator_a.name])
    if answer(standing(server, record), agreed, server.roster) is Reply.AGAIN:
        return record.agreed
    state, both = record.begun.after(RoundEvent.AGREED), server.countersign(signed)
    server.failpoints.reach(Point.BEFORE_LOCK_SIGNED)
    server.store.change_round(record.key, lambda r: replace(r, state=state, agreed_set=both))
    server.failpoints.reach(Point.AFTER_LOCK_SIGNED)
    return both
