"""Rounds of ciphertexts: side A collects, agrees and sums alone, side B countersigns (docs/protocol.md 11).

B gets no part of an update, so it cannot confirm what A holds. Its signature says that this is the only agreed set of
the round, and that the set is of listed sites and large enough; later, that this sum is the round's only end. Either
end, this one or a skip, needs both signatures, and each server signs one end per round, durably. So neither server
alone, whoever is on its side, can bring it about that a sum is served of a round that sites believe to be skipped.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from protocol.ckks.ciphertext import (
    BodyHeader,
    CkksParameters,
    Kind,
    body_bytes,
    chunk_bytes,
    chunk_count,
    chunk_offset,
)
from protocol.errors import ConflictingMessage, UnknownResource, WrongRound
from protocol.messages import paths
from protocol.messages.control import AgreedSet, Signed, SumRelease, require_signatures
from protocol.protection.registry import protection_of
from protocol.rounds.side_b import Reply, answer, require_named, require_no_other_end
from protocol.rounds.states import RoundEvent, RoundKey, SumAgreed
from servers.ckks.process import key_id_of, summed_body
from servers.failpoints import Point
from servers.peer_client import PeerClient
from servers.rounds.contributions import roster_of
from servers.rounds.endings import signed_by_both
from servers.rounds.release import commit_release, output_name
from servers.rounds.state import known_round, standing
from servers.server import Server
from servers.store.chunk_tags import ChunkTags, tags_of
from servers.store.records import RoundRecord, StudyRecord


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


def write_sum(server: Server, record: RoundRecord, values: int, name: str) -> str:
    """Add the released sites' ciphertexts into the file ``name``, of so many ``values``; its SHA-256. Blocks.

    Raises: ProtocolViolation, Unavailable, ConfigurationError, StorageFull
    """
    process, parameters = server.ckks, server.ckks.parameters
    header = BodyHeader(Kind.SUM, process.fingerprint(), key_id_of(record.announcement.message), values)
    held = {one.site: one for one in server.store.contributions(record.key)}
    sources = list[Callable[[int], bytes]]()
    for site in record.chosen.message.sites:
        one = held.get(site)
        if one is None or one.file is None:
            raise UnknownResource(f"the contribution of {site!r} is no longer kept")
        sources.append(stored_chunks(server.files.path(one.file), tags_of(one), parameters, values))
    server.files.require_room(body_bytes(parameters, Kind.SUM, values))
    taken = hashlib.sha256()
    with server.files.draft(Point.MASKED_SUM_MIDWAY) as draft:
        for piece in summed_body(process, header, sources):
            taken.update(piece)
            draft.write(piece)
        draft.keep(name)
    return taken.hexdigest()


def stored_chunks(path: Path, tags: ChunkTags, parameters: CkksParameters, values: int) -> Callable[[int], bytes]:
    """Chunk access to a stored contribution, compared with what was checked when it came.

    Raises: ShareAltered from the result
    """
    size = chunk_bytes(parameters, Kind.CONTRIBUTION)

    def read(index: int) -> bytes:
        at = chunk_offset(parameters, Kind.CONTRIBUTION, index)
        with tags.reading(at), path.open("rb", buffering=0) as file:
            file.seek(at)
            chunk = file.read(size)
        if index >= chunk_count(parameters, values) or len(chunk) != size:
            raise tags.altered(at)
        tags.require(at, chunk)
        return chunk

    return read


def sign_sum_release(server: Server, key: RoundKey, output_file: str, sum_digest: str) -> RoundRecord:
    """Side A: sign that the round ends with this sum, durably. From here on this side signs no skip of the round.

    Raises: WrongRound, when it has signed a skip meanwhile
    """
    with server.store.alone(key.study):
        record = known_round(server, key)
        end = standing(server, record).end
        if isinstance(end, SumAgreed):
            return record
        require_no_other_end(record.begun, end)
        stated = SumRelease(
            study_digest=key.study,
            round=key.round,
            attempt=key.attempt,
            release_digest=record.chosen.message.digest(),
            sum_digest=sum_digest,
        )
        signed = server.sign(stated)
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
