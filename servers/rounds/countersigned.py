"""Rounds of ciphertexts: side A collects, agrees and sums alone, side B countersigns (docs/protocol.md 11).

B gets no part of an update, so it cannot confirm what A holds. Its signature says that this is the only agreed set of
the round, and that the set is of listed sites and large enough; later, that this sum is the round's only end. Either
end, this one or a skip, needs both signatures, and each server signs one end per round, durably. So neither server
alone, whoever is on its side, can bring it about that a sum is served of a round that sites believe to be skipped.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from protocol.errors import ConflictingMessage, UnknownResource, WrongRound
from protocol.messages import paths
from protocol.messages.control import AgreedSet, Signed, SumRelease, require_signatures
from protocol.protection.registry import protection_of
from protocol.rounds.side_b import Reply, answer, require_named, require_no_other_end
from protocol.rounds.states import RoundEvent, RoundKey, SumAgreed
from servers.http.peer_client import PeerClient
from servers.points import Point
from servers.rounds.ciphertexts import write_sum
from servers.rounds.collect import roster_of
from servers.rounds.end_round import signed_by_both
from servers.rounds.release import commit_release, output_name
from servers.rounds.standing import known_round, standing
from servers.server import Server
from servers.store.study_records import RoundRecord, StudyRecord


async def countersigned_set(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """Side A: get B's signature under the set; nothing is measured after it. Raises: NotYet, ProtocolViolation"""
    path = paths.PEER_AGREED_SET
    _, both = await signed_by_both(server, peer, study, record, path, record.agreed, "agreed_set", UnknownResource)
    if both is not None:
        state = record.begun.after(RoundEvent.MEASURED)
        server.store.change_round(record.key, lambda r: replace(r, state=state, agreed_set=both))


async def sum_up(server: Server, study: StudyRecord, record: RoundRecord) -> None:
    """Side A: both servers hold one release set; add it up and sign the sum."""
    name, announcement = output_name(record), record.announcement.message
    _, values = protection_of(announcement).served(study.study, announcement, server.side)
    digest = await asyncio.to_thread(write_sum, server, record, values, name)
    sign_sum_release(server, record.key, name, digest)


def sign_sum_release(server: Server, key: RoundKey, output_file: str, sum_digest: str) -> RoundRecord:
    """Side A: sign that the round ends with this sum, durably. From here on this side signs no skip of the round.

    Raises: WrongRound, when it has signed a skip meanwhile
    """
    with server.store.alone(key.study):
        return _signed_sum(server, known_round(server, key), output_file, sum_digest)


def _signed_sum(server: Server, record: RoundRecord, output_file: str, sum_digest: str) -> RoundRecord:
    key, end = record.key, standing(server, record).end
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
    refused = (UnknownResource, WrongRound, ConflictingMessage)
    path, signed = paths.PEER_SUM_RELEASE, record.signed_sum
    _, both = await signed_by_both(server, peer, study, record, path, signed, "sum_release", *refused)
    if both is not None:
        commit_release(server, study, record, record.output_file, both)


def countersign_agreed_set(server: Server, record: RoundRecord, signed: Signed[AgreedSet]) -> Signed[AgreedSet]:
    """Side B: sign A's agreed set of a round of ciphertexts; one per round, the same again gets the same answer.

    Raises: BadSignature, AnnouncementMismatch, ConflictingMessage, ProtocolViolation, WrongRound
    """
    agreed = require_signatures(signed, server.roster, [server.roster.operator_a.name])
    if answer(standing(server, record), agreed, roster_of(server, record)) is Reply.AGAIN:
        return record.agreed
    state, both = record.begun.after(RoundEvent.AGREED), server.countersign(signed)
    server.failpoints.reach(Point.BEFORE_LOCK_SIGNED)
    server.store.change_round(record.key, lambda r: replace(r, state=state, agreed_set=both))
    server.failpoints.reach(Point.AFTER_LOCK_SIGNED)
    return both


def countersign_sum_release(
    server: Server, study: StudyRecord, key: RoundKey, signed: Signed[SumRelease]
) -> Signed[SumRelease]:
    """Side B: sign A's sum, unless this side has signed a skip; one per round, the same again gets the same answer.

    With that the round is released here: B itself has nothing to serve.

    Raises: BadSignature, AnnouncementMismatch, ConflictingMessage, UnknownResource, WrongRound
    """
    message = require_signatures(signed, server.roster, [server.roster.operator_a.name])
    require_named(message, key)
    record = known_round(server, key)
    if answer(standing(server, record), message, roster_of(server, record)) is Reply.AGAIN:
        return record.signed_sum
    both = server.countersign(signed)
    commit_release(server, study, record, None, both)
    return both
