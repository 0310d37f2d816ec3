"""Large contributions in parts, so that a broken upload goes on where it was (docs/protocol.md 3).

A part counts once its bytes are durable; they stay sealed until the last one is there. Then the message is taken in as
one that came in a single request: its digest, its seal and its commitment are looked at over all bytes.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from fastapi import Request

from protocol.errors import BadSignature, MalformedMessage, RefusedMessage, TooLarge, Unavailable
from protocol.protection.known import most_bytes
from protocol.rounds.states import RoundKey
from protocol.wire.channel.signing import DigestField
from protocol.wire.messages import HeldUpload, Receipt, Signed
from servers.http.authentication import Caller
from servers.http.bodies import Intake, read_small
from servers.points import Point
from servers.rounds import collect
from servers.server import Server
from servers.store.interface import StudyRecord
from servers.store.upload_parts import Upload

PART_BYTES: Final = 2**22
"""Every part but the last has this length; a server says it, and it may change."""


def held(server: Server, study: StudyRecord, upload: Upload) -> HeldUpload:
    """How much of it this server has; all, where the contribution is stored already.

    Raises: NotListed, WrongRound, TooLarge
    """
    stored = server.store.contribution(upload.key, upload.site) is not None
    if not stored:
        _require_taken(server, study, upload)
    found = upload.length if stored else min(server.uploads.held_bytes(upload), upload.length)
    return HeldUpload(body_digest=upload.digest, held_bytes=found, part_bytes=PART_BYTES)


async def take_part(
    server: Server, caller: Caller, study: StudyRecord, upload: Upload, offset: int, request: Request
) -> HeldUpload:
    """Keep the part at ``offset`` if it is the next one; what is held afterwards is the answer in any case.

    Raises: NotListed, WrongRound, TooLarge, MalformedMessage, all before the body is read; BadSignature, StorageFull
    """
    before = held(server, study, upload)
    size = min(PART_BYTES, upload.length - offset)
    if offset % PART_BYTES or size <= 0:
        raise MalformedMessage(
            f"no part of {upload.length} bytes begins at byte {offset}: parts have {PART_BYTES} bytes each"
        )
    if request.headers.get("content-length") != str(size):
        raise MalformedMessage(f"the part at byte {offset} has {size} bytes: send exactly those")
    data = await read_small(request, caller, PART_BYTES)
    if offset != before.held_bytes:
        return before
    server.uploads.keep_only(upload.key.study, upload.key)
    await asyncio.to_thread(server.uploads.add, upload, offset // PART_BYTES, data)
    server.failpoints.reach(Point.UPLOAD_MIDWAY)
    return held(server, study, upload)


async def complete(server: Server, caller: Caller, study: StudyRecord, upload: Upload) -> Signed[Receipt]:
    """All parts together as one contribution.

    Raises: as ``collect.contribute``; Unavailable, while parts are lacking
    """
    known = server.store.contribution(upload.key, upload.site)
    if known is not None:
        return collect.same_receipt(server, study, known, upload.digest)
    _require_taken(server, study, upload)
    there = server.uploads.held_bytes(upload)
    if there != upload.length:
        raise Unavailable(f"{there} of the contribution's {upload.length} bytes are here: send the other parts first")
    signed = replace(caller, body_digest=bytes.fromhex(upload.digest), digest_field=DigestField.SEALED)

    async def feed(intake: Intake) -> None:
        pieces = server.uploads.pieces(upload)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            await asyncio.to_thread(intake.feed, piece)

    try:
        receipt = await collect.take(server, signed, study, upload.key, feed)
    except (BadSignature, FileNotFoundError):
        server.uploads.drop(upload)
        raise Unavailable("the parts do not make the message with this digest: send them again") from None
    except RefusedMessage:
        server.uploads.drop(upload)
        raise
    server.uploads.drop(upload)
    return receipt


def _require_taken(server: Server, study: StudyRecord, upload: Upload) -> None:
    collect.require_taken(server, study, upload.key, upload.site)
    most = most_bytes(study.study)
    if upload.length > most:
        raise TooLarge(f"no contribution to this study has {upload.length} bytes, the longest has {most}")


def sweep(server: Server) -> None:
    """At start: uploads to attempts that are over, or to studies that are, go."""
    known = {digest for _, digest in server.store.study_digests()}
    for digest in server.uploads.studies():
        current = server.store.current_round(digest) if digest in known else None
        over = current is None or server.store.study(digest).state.ended
        server.uploads.keep_only(digest, None if over or current is None else current.key)


def upload_of(caller: Caller, study: StudyRecord, number: int, attempt: int, digest: str, length: int) -> Upload:
    """What the caller's request is about."""
    return Upload(RoundKey(study.digest, number, attempt), caller.name, digest, length)
