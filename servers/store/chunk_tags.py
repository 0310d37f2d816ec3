"""Tags of a stored share's chunks, by which every later reader knows the bytes that were checked (docs/protocol.md 3).

A share is checked once, as it comes: digest, seal, commitment. What is read from the disk afterwards, for the sketch,
the sum or by a worker, is compared with a tag per chunk before anything is computed of it. Tags are AES-GMAC under a
key that the server draws for this share: twenty times as fast as SHA-256, and a site, which knows all of its share but
not this key, finds no other bytes with the same tag.

    kept      32 bytes of key, then 16 bytes for each chunk
"""

from __future__ import annotations

import errno
import hmac
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocol.arithmetic.fixed_point import element_bytes, unpacked
from protocol.arithmetic.ring import Ring
from protocol.channel.sealing import CHUNK_BYTES, TAG_BYTES, Octets, octets
from protocol.ckks.ciphertext import HEADER_BYTES, CkksParameters, Kind, chunk_bytes
from protocol.errors import ProtocolViolation, ShareAltered
from protocol.messages.bodies import content_bytes
from protocol.messages.control import ShareKind
from protocol.parameters import WORD_BITS, RingBits
from servers.store.records import ContributionRecord

KEY_BYTES: Final = 32
CIPHERTEXTS: Final = CkksParameters()
_MARK_BYTES: Final = 16
_PIECE_BYTES: Final = 2**20
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of a busy machine, which say nothing about the file."""
_CHUNK_ELEMENTS: Final = 2**15
"""The step of a vector in either ring: passes read whole multiples of it."""


@dataclass(frozen=True)
class Layout:
    """The places of chunks: at 0, at ``first``, and from there every ``step`` bytes."""

    first: int
    step: int

    def index(self, place: int) -> int:
        """The chunk that holds the byte at ``place``."""
        return 0 if place < self.first else 1 + (place - self.first) // self.step

    def begin(self, index: int) -> int:
        return 0 if index == 0 else self.first + (index - 1) * self.step


ENCRYPTED: Final = Layout(CHUNK_BYTES + TAG_BYTES, CHUNK_BYTES + TAG_BYTES)
"""The layout of an encrypted body, as a cluster's storage holds it."""


def layout_of(kind: ShareKind, parameters: CkksParameters = CIPHERTEXTS) -> Layout:
    """The layout of a share's content. ``parameters`` are those of ciphertexts, whose header is a chunk of its own."""
    if kind is ShareKind.SEED:
        return Layout(CHUNK_BYTES, CHUNK_BYTES)
    if kind is ShareKind.CIPHERTEXT:
        return Layout(HEADER_BYTES, chunk_bytes(parameters, Kind.CONTRIBUTION))
    step = _CHUNK_ELEMENTS * element_bytes(kind.ring_bits)
    return Layout(step, step)


def _nonce(index: int) -> bytes:
    return index.to_bytes(12, "big")


class Tagger:
    """Takes a share's bytes in order and in pieces of any size."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._key = secrets.token_bytes(KEY_BYTES)
        self._done = bytearray()
        self._index = 0
        self._at = 0
        self._open: Any = None

    def write(self, piece: Octets) -> None:
        view = octets(piece)
        while view:
            end = self._layout.begin(self._index + 1)
            part, view = view[: end - self._at], view[end - self._at :]
            if self._open is None:
                self._open = Cipher(algorithms.AES(self._key), modes.GCM(_nonce(self._index))).encryptor()
            self._open.authenticate_additional_data(part)
            self._at += len(part)
            if self._at == end:
                self._end_chunk()

    def finish(self) -> bytes:
        """Return what is kept of it, once all has come; the same when asked again."""
        if self._open is not None:
            self._end_chunk()
        return self._key + bytes(self._done)

    def _end_chunk(self) -> None:
        self._open.finalize()
        self._done += self._open.tag
        self._open = None
        self._index += 1


@dataclass(frozen=True)
class ChunkTags:
    """The tags of one stored share, or of some of its chunks, from chunk ``first`` on. ``named`` is what errors quote.

    ``size`` is how many bytes the whole share has. ``kept`` is None of a share that an earlier release stored: its
    length alone is compared.
    """

    named: str
    size: int
    layout: Layout
    kept: bytes | None = field(repr=False)
    first: int = 0

    def cover(self, start: int, stop: int) -> tuple[int, int]:
        """Bytes of whole chunks that hold bytes ``start`` to ``stop``."""
        begin = self.layout.begin(self.layout.index(start))
        end = self.layout.begin(self.layout.index(max(start, stop - 1)) + 1)
        return begin, min(end, self.size)

    def require(self, start: int, data: Octets) -> None:
        """Compare whole chunks, of which the first begins at ``start``. Raises: ShareAltered, also on a part of one"""
        view, at = octets(data), start
        if not view:
            raise self.altered(at)
        if self.kept is None:
            return
        cipher = AESGCM(self.kept[:KEY_BYTES])
        while view:
            index = self.layout.index(at)
            end = min(self.layout.begin(index + 1), self.size)
            chunk, view = view[: end - at], view[end - at :]
            place = KEY_BYTES + _MARK_BYTES * (index - self.first)
            mark = self.kept[place : place + _MARK_BYTES] if index >= self.first else b""
            whole = at == self.layout.begin(index) and len(chunk) == end - at
            if not whole or not hmac.compare_digest(cipher.encrypt(_nonce(index), b"", chunk), mark):
                raise self.altered(at)
            at = end

    def require_file(self, file: BinaryIO) -> None:
        """Compare a whole file from its beginning. Raises: ShareAltered"""
        found = os.fstat(file.fileno()).st_size
        if found != self.size:
            raise self.altered(min(found, self.size))
        at = 0
        while at < self.size:
            piece = file.read(self.cover(at, at + _PIECE_BYTES)[1] - at)
            self.require(at, piece)
            at += len(piece)

    def reader(self, read: Callable[[int, int], Octets]) -> Callable[[int, int], Octets]:
        """``read``, which gives ``size`` bytes from ``offset`` of whole chunks, with every chunk compared."""

        def compared(offset: int, size: int) -> Octets:
            try:
                data = read(offset, size)
            except ProtocolViolation:  # there is no such file
                raise self.altered(offset) from None
            if len(octets(data)) != max(0, min(size, self.size - offset)):
                raise self.altered(offset)
            self.require(offset, data)
            return data

        return compared

    def within(self, start: int, stop: int) -> ChunkTags:
        """The tags of the chunks that hold bytes ``start`` to ``stop`` alone."""
        if self.kept is None:
            return self
        first, last = self.layout.index(start), self.layout.index(max(start, stop - 1))
        begin, end = (KEY_BYTES + _MARK_BYTES * (index - self.first) for index in (first, last + 1))
        return ChunkTags(self.named, self.size, self.layout, self.kept[:KEY_BYTES] + self.kept[begin:end], first)

    @contextmanager
    def reading(self, at: int = 0) -> Iterator[None]:
        """Around reads of the share's file. Raises: ShareAltered, where it cannot be read; OSError of a busy machine"""
        try:
            yield
        except OSError as error:
            if error.errno in _PASSING:
                raise
            raise self.altered(at) from error

    def altered(self, at: int) -> ShareAltered:
        return ShareAltered(
            f"the stored share of {self.named!r} is not what was received, from byte {at} on: it was cut, altered or "
            "deleted on this server's disk; check the disk and who can write to it"
        )


class Scratch:
    """Buffers that all sources of one pass take turns with: what a source returns holds until the next call."""

    def __init__(self) -> None:
        self._elements = np.empty(0, dtype=np.uint64)
        self._packed = bytearray()

    def take(self, size: int) -> Ring:
        if self._elements.size < size:
            self._elements = np.empty(size, dtype=np.uint64)
        return self._elements[:size]

    def packed(self, size: int) -> memoryview:
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
        return unpacked(raw, out.size, self.bits, out)

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
