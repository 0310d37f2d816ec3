"""Large contributions in parts, so that a broken upload goes on where it was (docs/protocol.md 3).

A part is opened, hashed and written as it comes, once; it counts as far as it is durable, chunk by chunk. When all is
there, the digest, the seal and the commitment are looked at over all bytes, as over those of a single request.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

from fastapi import Request

from protocol.channel.sealing import Octets
from protocol.channel.signing import DigestField
from protocol.errors import BadSignature, MalformedMessage, RefusedMessage, TooLarge, Unavailable
from protocol.messages.control import ContributionHeader, HeldUpload, Receipt, Signed
from servers.failpoints import Point
from servers.rounds import contributions
from servers.rounds.intake import Caller, stream_into
from servers.server import Server
from servers.store.records import StudyRecord
from servers.store.upload_parts import Awaited, NotAsChecked, ShareInParts, Upload, UploadParts

_LEAST_PART_BYTES: Final = 2**10
"""The least that a message can say; a part that ends the upload may be shorter."""


async def held(server: Server, study: StudyRecord, upload: Upload) -> HeldUpload:
    """Return how much of the upload this server has; all, where the contribution is stored already.

    Raises: NotListed, WrongRound, TooLarge, MalformedMessage
    """
    if server.store.contribution(upload.key, upload.site) is not None:
        return HeldUpload(body_digest=upload.digest, held_bytes=upload.length, part_bytes=_LEAST_PART_BYTES)
    awaited = _awaited(server, study, upload)
    if not server.uploads.begun(upload):
        return _said(upload, awaited, 0)
    share = await asyncio.to_thread(server.uploads.share, upload, awaited)
    return _said(upload, awaited, await asyncio.to_thread(share.held_bytes))


def _said(upload: Upload, awaited: Awaited, there: int) -> HeldUpload:
    part_bytes = max((awaited.part_end(there) or there) - there, _LEAST_PART_BYTES)
    return HeldUpload(body_digest=upload.digest, held_bytes=there, part_bytes=part_bytes)


async def take_part(server: Server, study: StudyRecord, upload: Upload, offset: int, request: Request) -> HeldUpload:
    """Take the part at ``offset`` if it is the next one; what is held afterwards is the answer in any case.

    Where it breaks off, the chunks that came stay.

    Raises: NotListed, WrongRound, TooLarge, MalformedMessage, all before the body is read; Unavailable, StorageFull
    """
    if server.store.contribution(upload.key, upload.site) is not None:
        return await held(server, study, upload)
    awaited = _awaited(server, study, upload)
    end = awaited.part_end(offset)
    if end is None:
        raise MalformedMessage(f"no part begins at byte {offset}: go on behind the {HeldUpload.KIND}'s bytes")
    if request.headers.get("content-length") != str(end - offset):
        raise MalformedMessage(f"the part at byte {offset} has {end - offset} bytes: send exactly those")
    server.uploads.keep_only(upload.key.study, upload.key)
    server.files.require_room(end - offset)
    share = await asyncio.to_thread(server.uploads.share, upload, awaited)
    if await asyncio.to_thread(share.held_bytes) == offset:
        await stream_into(request, _Units(share, awaited, offset).feed, end - offset)
    return _said(upload, awaited, await asyncio.to_thread(share.held_bytes))


class _Units:
    """Pieces of a part, of any size, as the head and the chunks that they make up."""

    def __init__(self, share: ShareInParts, awaited: Awaited, offset: int) -> None:
        self._share = share
        self._awaited = awaited
        self._at = offset
        self._held = bytearray()

    def feed(self, data: bytes | bytearray) -> None:
        """Raises: as :meth:`ShareInParts.take`"""
        view = memoryview(data)
        while view:
            needed = self._awaited.unit_end(self._at) - self._at - len(self._held)
            piece, view = view[:needed], view[needed:]
            if len(piece) < needed:
                self._held += piece
            elif self._held:
                self._held += piece
                self._take(self._held)
                self._held = bytearray()
            else:
                self._take(piece)

    def _take(self, unit: Octets) -> None:
        self._share.take(self._at, unit)
        self._at += len(unit)


async def complete(server: Server, caller: Caller, study: StudyRecord, upload: Upload) -> Signed[Receipt]:
    """All parts together as one contribution.

    Raises: as ``collect.contribute``; Unavailable, while parts are lacking, or where another process takes them away
    """
    known = server.store.contribution(upload.key, upload.site)
    if known is not None:
        return contributions.same_receipt(server, study, known, upload.digest)
    there = (await held(server, study, upload)).held_bytes
    if there != upload.length:
        raise Unavailable(f"{there} of the contribution's {upload.length} bytes are here: send the other parts first")
    share = await asyncio.to_thread(server.uploads.share, upload, _awaited(server, study, upload))
    signed = replace(caller, body_digest=bytes.fromhex(upload.digest), digest_field=DigestField.SEALED)
    required = partial(signed.require_digest, digest_field=DigestField.SEALED)
    try:
        finished = await asyncio.to_thread(share.finish, required)
        receipt = await _kept(server, study, upload, finished, share)
    except NotAsChecked:
        server.uploads.drop(upload)
        raise
    except BadSignature:
        server.uploads.drop(upload)
        raise Unavailable("the parts do not make the message with this digest: send them again") from None
    except FileNotFoundError:
        server.uploads.drop(upload)
        raise Unavailable("the parts were swept away while they were put together: send them again") from None
    except RefusedMessage:
        server.uploads.drop(upload)
        raise
    server.uploads.drop(upload)
    return receipt


async def _kept(
    server: Server, study: StudyRecord, upload: Upload, finished: tuple[ContributionHeader, bytes], share: ShareInParts
) -> Signed[Receipt]:
    """Store the share, with what :meth:`ShareInParts.finish` says of it. Raises: as ``contributions.contribute``"""
    (header, tags), name = finished, contributions.share_name()
    server.failpoints.reach(Point.BEFORE_UPLOAD_WRITTEN)
    keep = partial(server.shares.keep_upload, share, header.share_kind, name, tags)
    wrapped_key, tags = await asyncio.to_thread(keep)
    server.failpoints.reach(Point.AFTER_UPLOAD_WRITTEN)
    return contributions.commit_share(server, study, upload.key, header, upload.digest, name, wrapped_key, tags)


def _awaited(server: Server, study: StudyRecord, upload: Upload) -> Awaited:
    awaited = contributions.awaited(server, study, upload.key, upload.site)
    if upload.length > awaited.length:
        raise TooLarge(f"this contribution has {awaited.length} bytes, not {upload.length}: check the study")
    if upload.length != awaited.length:
        raise MalformedMessage(f"this contribution has {awaited.length} bytes, not {upload.length}: check the study")
    return awaited


def sweep(server: Server) -> None:
    """Uploads to attempts that are over, or to studies that are, go. Of several processes the one that drives does the
    same for the others: one that was taken away for good would leave its own for ever.
    """
    everybodys = [UploadParts(folder) for folder in server.uploads_of_all] if server.drives else []
    known = {digest for _, digest in server.store.study_digests()}
    for parts in (server.uploads, *everybodys):
        for digest in parts.studies():
            current = server.store.current_round(digest) if digest in known else None
            over = current is None or server.store.study(digest).state.ended
            parts.keep_only(digest, None if over or current is None else current.key)
