"""One server's masked sum on its way to the other, and what the other makes of it (docs/protocol.md 9).

The sum is never in memory as a whole, and on disk only where it has become an output. Side B is fetched from, side A
sends; either way it is sealed to the other and made while it is sent: the sender's signature covers the message's head,
and the key sealed in it authenticates every chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from protocol.arithmetic.fixed_point import packed
from protocol.arithmetic.ring import Ring
from protocol.channel.commitment import head_digest
from protocol.channel.sealing import Octets, SealedMessage
from protocol.channel.signing import DigestField
from protocol.messages import bodies as body
from protocol.messages.bodies import SECRET_BYTES
from protocol.messages.control import ShareKind
from protocol.messages.peer import MaskedSumHeader
from protocol.parameters import TAG_COORDINATES, StudyParameters
from protocol.release import combine_chunk, masked_sum_chunk, sum_chunk
from protocol.sharing import ChunkSource
from protocol.tags import VectorDigest
from servers.http.authentication import Caller
from servers.rounds.sketches import agreed_sources, bound_of, by_site, stored_shares
from servers.server import Server
from servers.shards.passes import Shards
from servers.store.files.shares import Draft
from servers.store.study_records import RoundRecord

CHUNK_ELEMENTS: Final = 2**16
"""Summed at once: small enough for the processor's cache, large enough that opening a share's file costs little."""
PIECE_ELEMENTS: Final = 2**17
"""Handed on at once: every piece costs a change of threads."""


def summed_length(record: RoundRecord, parameters: StudyParameters) -> int:
    """Return the length of a round's vectors, with their tags."""
    return parameters.dimension + (TAG_COORDINATES if record.announcement.message.tagged else 0)


def masked_sum_header(record: RoundRecord, parameters: StudyParameters) -> MaskedSumHeader:
    """Return the header of the sum."""
    return MaskedSumHeader(
        release_digest=record.chosen.message.digest(),
        length=summed_length(record, parameters),
        share_kind=ShareKind.vector_of(parameters.ring_bits),
    )


def masked_sum(server: Server, record: RoundRecord, parameters: StudyParameters) -> Iterator[Octets]:
    """This side's sum minus PRG(t), piece by piece."""
    length = summed_length(record, parameters)
    if server.shards is not None:
        yield from _masked_by_workers(server, server.shards, record, parameters)
        return
    mask, sources = record.mask, _sources(server, record, length)
    for start in range(0, length, PIECE_ELEMENTS):
        piece = np.empty(min(PIECE_ELEMENTS, length - start), dtype=np.uint64)
        for at in range(0, piece.size, CHUNK_ELEMENTS):
            stop = min(at + CHUNK_ELEMENTS, piece.size)
            piece[at:stop] = masked_sum_chunk(sum_chunk(sources, start + at, start + stop), mask, start + at)
        yield packed(piece, parameters.ring_bits)


def _masked_by_workers(
    server: Server, shards: Shards, record: RoundRecord, parameters: StudyParameters
) -> Iterator[Octets]:
    """The same bytes, of ranges that workers have summed and masked."""
    length = summed_length(record, parameters)
    shares = stored_shares(server, record, record.chosen.message.sites)
    written = shards.masked_sum(bound_of(record), shares, record.mask, length)
    masked = by_site(server, record, written.elements)
    for start in range(0, length, PIECE_ELEMENTS):
        yield packed(masked(start, min(start + PIECE_ELEMENTS, length)), parameters.ring_bits)


def sealed_masked_sum(server: Server, record: RoundRecord, parameters: StudyParameters) -> SealedMessage:
    """This side's masked sum, sealed to the other side."""
    return body.seal_masked_sum(
        masked_sum_header(record, parameters),
        masked_sum(server, record, parameters),
        server.sealing_key_of(server.peer.name),
        server.randomness.bytes(SECRET_BYTES, f"{record.key.label} masked sum for the peer"),
    )


def _sources(server: Server, record: RoundRecord, length: int) -> Sequence[ChunkSource]:
    """Return the shares that add up to this side's sum."""
    sites = record.chosen.message.sites
    if server.shards is None:
        return agreed_sources(server, record, sites)
    summed = server.shards.sum(bound_of(record), stored_shares(server, record, sites), length)
    return [by_site(server, record, summed)]


class SealedMaskedSum:
    """Takes the peer's masked sum sealed to this server, sent or fetched; adds the own sum and writes the output."""

    def __init__(self, server: Server, record: RoundRecord, parameters: StudyParameters, draft: Draft) -> None:
        self._sources = _sources(server, record, summed_length(record, parameters))
        self._bits = parameters.ring_bits
        self._draft = draft
        self._digest = VectorDigest() if record.announcement.message.tagged else None
        self._reader = body.MaskedSumReader(masked_sum_header(record, parameters), server.keys.sealing)

    def feed(self, data: bytes | bytearray) -> None:
        """Raises: MalformedMessage, AnnouncementMismatch, BrokenSeal"""
        self._combine(*self._reader.feed(data))

    def finish(self, caller: Caller | None = None) -> None:
        """``caller`` is who sent it; of what was fetched the head has been checked as it came.

        Raises: BadSignature, unless the peer signed this message's head; BrokenSeal, MalformedMessage
        """
        if caller is not None:
            caller.require_digest(head_digest(self._reader.head), DigestField.SEALED_HEAD)
        self._combine(*self._reader.last())
        self._reader.finish()

    def half_digest(self) -> str | None:
        """Return the digest of the output, once all has come; None in a round without tags, which needs none."""
        return None if self._digest is None else self._digest.hexdigest()

    def _combine(self, start: int, masked: Ring) -> None:
        for at in range(0, masked.size, CHUNK_ELEMENTS):
            piece = masked[at : at + CHUNK_ELEMENTS]
            own = sum_chunk(self._sources, start + at, start + at + piece.size)
            combined = packed(combine_chunk(piece, own), self._bits)
            self._draft.write(combined)
            if self._digest is not None:
                self._digest.update(combined)
