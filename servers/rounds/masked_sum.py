"""One server's masked sum on its way to the other, and what the other makes of it (docs/protocol.md 9).

The sum is never in memory as a whole, and on disk only where it has become an output. Side B is fetched from, side A
sends; either way it is sealed to the other and made while it is sent: the sender's signature covers the message's head,
and the key sealed in it authenticates every chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from protocol.arithmetic.ring import from_bytes, to_bytes
from protocol.errors import AnnouncementMismatch, MalformedMessage
from protocol.parameters import StudyParameters
from protocol.release import combine_chunk, masked_sum_chunk, sum_chunk
from protocol.sharing import ChunkSource
from protocol.wire.channel.sealing import CONTENT_KEY_BYTES, SALT_BYTES, SealedMessage, SealedReader, seal_message
from protocol.wire.channel.signing import DigestField
from protocol.wire.commitment import head_digest
from protocol.wire.peer_messages import MaskedSumHeader
from servers.http.authentication import Caller
from servers.rounds.collect import ELEMENT_BYTES
from servers.rounds.sketches import agreed_sources
from servers.server import Server
from servers.store.interface import RoundRecord
from servers.store.shares import Draft

CHUNK_ELEMENTS: Final = 2**16
"""Summed at once: small enough for the processor's cache, large enough that opening a share's file costs little."""
PIECE_ELEMENTS: Final = 2**17
"""Handed on at once: every piece costs a change of threads."""


def masked_sum_header(record: RoundRecord, parameters: StudyParameters) -> MaskedSumHeader:
    """What the sum is of."""
    return MaskedSumHeader(release_digest=record.chosen.message.digest(), length=parameters.dimension)


def masked_sum(server: Server, record: RoundRecord, parameters: StudyParameters) -> Iterator[bytes]:
    """This side's sum minus PRG(t), piece by piece."""
    mask, sources, length = record.mask, _sources(server, record, parameters), parameters.dimension
    for start in range(0, length, PIECE_ELEMENTS):
        piece = np.empty(min(PIECE_ELEMENTS, length - start), dtype=np.uint64)
        for at in range(0, piece.size, CHUNK_ELEMENTS):
            stop = min(at + CHUNK_ELEMENTS, piece.size)
            own = sum_chunk(sources, start + at, start + stop)
            piece[at:stop] = masked_sum_chunk(own, mask, start + at)
        yield to_bytes(piece)


def sealed_masked_sum(server: Server, record: RoundRecord, parameters: StudyParameters) -> SealedMessage:
    """This side's masked sum, sealed to the other side."""
    secret = server.randomness.bytes(CONTENT_KEY_BYTES + SALT_BYTES, f"{record.key.label} masked sum for the peer")
    return seal_message(
        masked_sum_header(record, parameters).canonical(),
        masked_sum(server, record, parameters),
        server.sealing_key_of(server.peer.name),
        secret[:CONTENT_KEY_BYTES],
        secret[CONTENT_KEY_BYTES:],
    )


def _sources(server: Server, record: RoundRecord, parameters: StudyParameters) -> list[ChunkSource]:
    return agreed_sources(server, record, record.chosen.message.sites, parameters.dimension)


class _Combining:
    """Adds this side's own sum to the peer's masked one as it arrives, and writes the output."""

    def __init__(self, server: Server, record: RoundRecord, parameters: StudyParameters, draft: Draft) -> None:
        self._header = masked_sum_header(record, parameters)
        self._sources = _sources(server, record, parameters)
        self._draft = draft
        self._held = b""
        self._done = 0

    def require_header(self, header: MaskedSumHeader) -> None:
        """Raises: AnnouncementMismatch"""
        if header != self._header:
            raise AnnouncementMismatch("the masked sum is for another release, or of another length")

    def feed(self, data: bytes | bytearray) -> None:
        """Raises: MalformedMessage"""
        elements = memoryview(self._held + data if self._held else data)
        whole = len(elements) // ELEMENT_BYTES
        if self._done + whole > self._header.length:
            raise MalformedMessage(f"a masked sum of {self._header.length} elements was announced, more came")
        masked = from_bytes(elements[: ELEMENT_BYTES * whole], whole)
        self._held = bytes(elements[ELEMENT_BYTES * whole :])
        for at in range(0, whole, CHUNK_ELEMENTS):
            piece = masked[at : at + CHUNK_ELEMENTS]
            own = sum_chunk(self._sources, self._done, self._done + piece.size)
            self._draft.write(combine_chunk(piece, own).data)
            self._done += piece.size

    def finish(self) -> None:
        """Raises: MalformedMessage, when elements are missing"""
        if self._held or self._done != self._header.length:
            raise MalformedMessage(f"a masked sum has {self._header.length} elements, {self._done} came")


class SealedMaskedSum:
    """Takes the peer's masked sum sealed to this server, sent or fetched."""

    def __init__(self, server: Server, record: RoundRecord, parameters: StudyParameters, draft: Draft) -> None:
        self._combining = _Combining(server, record, parameters, draft)
        self._reader = SealedReader(server.keys.sealing, self._accept)

    def feed(self, data: bytes | bytearray) -> None:
        """Raises: MalformedMessage, AnnouncementMismatch, BrokenSeal"""
        self._combining.feed(b"".join(self._reader.feed(data)))  # in one piece: every piece opens every share's file

    def finish(self, caller: Caller | None = None) -> None:
        """``caller`` is who sent it; of what was fetched the head has been checked as it came.

        Raises: BadSignature, unless the peer signed this message's head; BrokenSeal, MalformedMessage
        """
        if caller is not None:
            caller.require_digest(head_digest(self._reader.head), DigestField.SEALED_HEAD)
        self._combining.feed(self._reader.finish())
        self._combining.finish()

    def _accept(self, header: bytes) -> None:
        self._combining.require_header(MaskedSumHeader.parse(header))
