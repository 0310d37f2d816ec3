"""One server's masked sum on its way to the other, and what the other makes of it (docs/protocol.md 9).

The sum is never in memory as a whole, and on disk only where it has become an output. Side B is fetched from, side A
sends; either way it is sealed to the other and made while it is sent: the sender's signature covers the message's head,
and the key sealed in it authenticates every chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Final

from protocol.arithmetic.fixed_point import packed
from protocol.channel.commitment import head_digest
from protocol.channel.sealing import Octets, SealedMessage
from protocol.channel.signing import DigestField
from protocol.messages import bodies as body
from protocol.messages import paths
from protocol.messages.bodies import SECRET_BYTES
from protocol.messages.control import ShareKind
from protocol.messages.peer import MaskedSumHeader
from protocol.parameters import TAG_COORDINATES, StudyParameters
from protocol.release import combine_chunk, sum_chunk
from protocol.tags import VectorDigest
from servers.failpoints import Point
from servers.peer_client import PeerClient
from servers.rounds.endings import round_path
from servers.rounds.intake import Caller
from servers.rounds.release import keep_mask, keep_output, output_name, with_mask_seed
from servers.rounds.sketches import parameters_of
from servers.server import Server
from servers.store.files import Draft
from servers.store.records import RoundRecord, StudyRecord
from servers.store.shares import CHUNK_ELEMENTS

PIECE_ELEMENTS: Final = 2**17
"""Handed on at once: every piece costs a change of threads."""


def summed_length(record: RoundRecord, parameters: StudyParameters) -> int:
    """Return the length of a round's vectors, with their tags."""
    return parameters.dimension + (TAG_COORDINATES if record.announcement.message.tagged else 0)


def masked_sum_header(record: RoundRecord, parameters: StudyParameters) -> MaskedSumHeader:
    return MaskedSumHeader(
        release_digest=record.chosen.message.digest(),
        length=summed_length(record, parameters),
        share_kind=ShareKind.vector_of(parameters.ring_bits),
    )


def masked_sum(server: Server, record: RoundRecord, parameters: StudyParameters) -> Iterator[Octets]:
    """This side's sum minus PRG(t), piece by piece."""
    length = summed_length(record, parameters)
    masked = server.shares.masked_sum(record, length)
    for start in range(0, length, PIECE_ELEMENTS):
        yield packed(masked(start, min(start + PIECE_ELEMENTS, length)), parameters.ring_bits)


def sealed_masked_sum(server: Server, record: RoundRecord, parameters: StudyParameters) -> SealedMessage:
    return body.seal_body(
        masked_sum_header(record, parameters),
        masked_sum(server, record, parameters),
        server.sealing_key_of(server.peer.name),
        server.randomness.bytes(SECRET_BYTES, f"{record.key.label} masked sum for the peer"),
    )


class SealedMaskedSum:
    """Takes the peer's masked sum sealed to this server, sent or fetched; adds the own sum and writes the output."""

    def __init__(self, server: Server, record: RoundRecord, parameters: StudyParameters, draft: Draft) -> None:
        self._summands = server.shares.summands(record, summed_length(record, parameters))
        self._bits = parameters.ring_bits
        self._draft = draft
        self._digest = VectorDigest() if record.announcement.message.tagged else None
        header = masked_sum_header(record, parameters)
        self._reader, self._elements = body.masked_sum_readers(header, server.keys.sealing)

    def feed(self, data: bytes | bytearray) -> None:
        """Raises: MalformedMessage, AnnouncementMismatch, BrokenSeal"""
        self._combine(b"".join(self._reader.feed(data)))

    def finish(self, caller: Caller | None = None) -> None:
        """``caller`` is who sent it; of what was fetched the head has been checked as it came.

        Raises: BadSignature, unless the peer signed this message's head; BrokenSeal, MalformedMessage
        """
        if caller is not None:
            caller.require_digest(head_digest(self._reader.head), DigestField.SEALED_HEAD)
        self._combine(self._reader.finish())
        self._elements.finish()

    def half_digest(self) -> str | None:
        """Return the digest of the output, once all has come; None in a round without tags, which needs none."""
        return None if self._digest is None else self._digest.hexdigest()

    def _combine(self, content: bytes) -> None:
        start, masked = self._elements.feed(content)
        for at in range(0, masked.size, CHUNK_ELEMENTS):
            piece = masked[at : at + CHUNK_ELEMENTS]
            own = sum_chunk(self._summands, start + at, start + at + piece.size)
            combined = packed(combine_chunk(piece, own), self._bits)
            self._draft.write(combined)
            if self._digest is not None:
                self._digest.update(combined)


async def send_masked_sum(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """In a round that side A masks: send the masked sum sealed, then release with the mask, or commit to it."""
    record = with_mask_seed(server, record)
    parameters = parameters_of(study, record)
    await peer.put_sealed(
        round_path(paths.PEER_MASKED_SUM, study, record),
        sealed_masked_sum(server, record, parameters),
        body.masked_sum_bytes(masked_sum_header(record, parameters)),
        "masked_sum",
    )
    keep_mask(server, study, record)


async def fetch_masked_sum(server: Server, peer: PeerClient, study: StudyRecord, record: RoundRecord) -> None:
    """In a round that side B masks: fetch its masked sum, add the own one and commit with the output."""
    await asyncio.to_thread(server.shares.require_unaltered, record)
    parameters = parameters_of(study, record)
    with server.files.draft(Point.MASKED_SUM_MIDWAY) as draft:
        intake = SealedMaskedSum(server, record, parameters, draft)
        most = body.most_masked_sum_bytes(summed_length(record, parameters))
        path = round_path(paths.PEER_MASKED_SUM, study, record)
        async with aclosing(peer.stream(path, "masked_sum", most)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(intake.feed, piece)
        intake.finish()
        await asyncio.to_thread(draft.keep, output_name(record))
    keep_output(server, study, record, output_name(record), intake.half_digest())
