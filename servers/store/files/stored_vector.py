"""Shares as vectors on this server's disk: read chunk by chunk, in the study's ring (docs/protocol.md 3, 24)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protocol.arithmetic.fixed_point import element_bytes, unpacked
from protocol.arithmetic.kernels import NUMBA
from protocol.arithmetic.ring import Ring
from protocol.messages.contribution import content_bytes
from protocol.parameters import WORD_BITS, RingBits
from servers.store.files.chunk_tags import ChunkTags, layout_of
from servers.store.records import ContributionRecord


class Scratch:
    """Buffers that all sources of one pass take turns with: what a source returns holds until the next call."""

    def __init__(self) -> None:
        self._elements = np.empty(0, dtype=np.uint64)
        self._packed = bytearray()

    def take(self, size: int) -> Ring:
        """So many elements."""
        if self._elements.size < size:
            self._elements = np.empty(size, dtype=np.uint64)
        return self._elements[:size]

    def packed(self, size: int) -> memoryview:
        """So many bytes."""
        if len(self._packed) < size:
            self._packed = bytearray(size)
        return memoryview(self._packed)[:size]


@dataclass(frozen=True)
class StoredVector:
    """One site's share of ``length`` elements in a file: never the whole vector in memory, nor the file mapped."""

    path: Path
    length: int
    bits: RingBits
    tags: ChunkTags

    def require_whole(self) -> None:
        """Raises: ShareAltered"""
        with self.tags.reading():
            found = self.path.stat().st_size
        if found != self.tags.size:
            raise self.tags.altered(min(found, self.tags.size))

    def elements(self, start: int, stop: int, scratch: Scratch) -> Ring:
        """Elements ``start`` to ``stop``, until the scratch is used again; compared with what was received.

        Raises: ShareAltered
        """
        out = scratch.take(stop - start)
        if self.bits == WORD_BITS:
            self._read(out.data.cast("B"), start)
            return out
        raw = scratch.packed(element_bytes(self.bits) * out.size)
        self._read(raw, start)
        return unpacked(raw, out.size, self.bits, NUMBA, out)

    def _read(self, into: memoryview, start: int) -> None:
        """Whole chunks, of which those at the ends may hold more than is wanted."""
        wanted = element_bytes(self.bits) * start
        begin, end = self.tags.cover(wanted, wanted + into.nbytes)
        room = into if end - begin == into.nbytes else memoryview(bytearray(end - begin))
        with self.tags.reading(begin), self.path.open("rb", buffering=0) as file:
            file.seek(begin)
            taken = file.readinto(room)
        if taken != room.nbytes:
            raise self.tags.altered(begin + (taken or 0))
        self.tags.require(begin, room)
        if room is not into:
            into[:] = room[wanted - begin :][: into.nbytes]


def tags_of(record: ContributionRecord) -> ChunkTags:
    """The tags that a site's stored share is compared with, wherever it is read."""
    kind = record.header.share_kind
    return ChunkTags(record.site, content_bytes(kind, record.header.length), layout_of(kind), record.chunk_tags)


def read_whole(path: Path, tags: ChunkTags) -> bytes:
    """A short share, compared with what was received. Raises: ShareAltered"""
    with tags.reading():
        found = path.read_bytes()
    if len(found) != tags.size:
        raise tags.altered(min(len(found), tags.size))
    tags.require(0, found)
    return found
