"""A sealed share that comes in parts, opened as it comes, and taken up again after a restart (docs/protocol.md 3).

    head       the sealed message's head, as it came
    content    the opened content, whole chunks of it

The state of a hash cannot be written down; but a key and a place have one encrypted form, so head and content give back
every sealed byte that came, and with them the hash.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from host.durable import is_full, write_durably
from protocol.bodies.contribution import Part
from protocol.errors import BrokenSeal, MoietyError, RefusedMessage, StorageFull, Unavailable
from protocol.sharing import Side
from protocol.wire.channel.known_body import KnownBody
from protocol.wire.channel.sealing import (
    CHUNK_BYTES,
    TAG_BYTES,
    Octets,
    SealedReader,
    octets,
    sealed_head_length,
    sealed_length,
)
from protocol.wire.commitment import MessageDigest, check_commitment
from protocol.wire.keys import SealingKey
from protocol.wire.messages import ContributionHeader

CHUNKS_OF_A_PART: Final = 64
_HEAD: Final = "head"
_CONTENT: Final = "content"
_SEALED_CHUNK: Final = CHUNK_BYTES + TAG_BYTES


def _kept_already(piece: bytes) -> None:
    """Content is on disk before it is looked at."""


class Check(Protocol):
    """Looks at opened content, in order. Raises: what refuses it"""

    def write(self, piece: bytes) -> None: ...

    def finish(self) -> None: ...


@dataclass(frozen=True)
class Awaited:
    """What is to come: one server's part of a contribution, under which key, and what else looks at its content.

    ``new_check`` makes what looks at it, and hands each piece on to its argument.
    """

    key: SealingKey
    part: Part
    content_bytes: int
    new_check: Callable[[Callable[[bytes], None]], Check] | None = None

    @property
    def head_bytes(self) -> int:
        """The head's length, whatever the commitments are."""
        return sealed_head_length(len(self.part.header({}).canonical()))

    @property
    def length(self) -> int:
        """The whole sealed message's."""
        return self.head_bytes + sealed_length(self.content_bytes)

    def unit_end(self, offset: int) -> int:
        """Where the head or the chunk that begins at ``offset`` ends."""
        return self.head_bytes if offset == 0 else min(offset + _SEALED_CHUNK, self.length)

    def part_end(self, offset: int) -> int | None:
        """Where a part that begins at ``offset`` ends; None, where no part begins."""
        part_bytes, beyond = CHUNKS_OF_A_PART * _SEALED_CHUNK, offset - self.head_bytes
        if offset >= self.length or (offset and (beyond < 0 or beyond % _SEALED_CHUNK)):
            return None
        return min(self.head_bytes + (max(beyond, 0) // part_bytes + 1) * part_bytes, self.length)


class ShareInParts:
    """One upload's state. Blocks: for threads. Safe to use from several: each says where its bytes belong."""

    def __init__(self, folder: Path, awaited: Awaited, after_piece: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._awaited = awaited
        self._after_piece = after_piece
        self._lock = threading.Lock()
        self._file: int | None = None
        self._take_up()

    def _begin(self) -> None:
        with suppress(OSError):
            self._close()
        self._digest = MessageDigest()
        self._reader = SealedReader(self._awaited.key, self._accept)
        self._header: ContributionHeader | None = None
        self._body: KnownBody | None = None
        self._check = None if self._awaited.new_check is None else self._awaited.new_check(_kept_already)
        self._refused: RefusedMessage | None = None
        self._held_bytes = 0

    @property
    def content(self) -> Path:
        """The file with the opened content."""
        return self._folder / _CONTENT

    @property
    def content_key(self) -> bytes:
        """The body's. Raises: BrokenSeal, before the head came"""
        if self._reader.content_key is None:
            raise BrokenSeal("the sealed share's head has not come")
        return self._reader.content_key

    def encrypted_body(self) -> Iterator[bytes]:
        """The bytes behind the head as they came, of a share that is finished."""
        body = KnownBody(self.content_key, self._awaited.content_bytes)
        with self.content.open("rb", buffering=0) as file:
            for content in self._whole_chunks(file, body):
                yield body.sealed_again(content)

    def held_bytes(self) -> int:
        """How many bytes of the sealed message are here, durably: the head and whole chunks.

        Raises: StorageFull, where what came could not be made durable; then none are here any more
        """
        with self._lock, _explained():
            self._make_durable()
            return self._held_bytes

    def take(self, at: int, unit: Octets) -> None:
        """The head, or the chunk, that begins at ``at``.

        Raises: Unavailable, when others are here already, or it was altered on its way; StorageFull
        """
        with self._lock:
            if at != self._held_bytes:
                raise Unavailable("these bytes are here already: ask how many are, and go on there")
            with _explained():
                (self._take_head if at == 0 else self._take_chunk)(unit)
            self._held_bytes += len(octets(unit))
        self._after_piece()

    def finish(self, require_digest: Callable[[bytes], None]) -> ContributionHeader:
        """The header, once all is here and is what ``require_digest`` takes.

        Raises: what that raises; what was refused on the way; BrokenSeal, CommitmentMismatch; StorageFull, as
        ``held_bytes``
        """
        with self._lock, _explained():
            require_digest(self._digest.digest())
            if self._refused is not None:
                raise self._refused
            header, salt, key = self._header, self._reader.salt, self._reader.content_key
            if self._body is None or not self._body.ended or header is None or salt is None or key is None:
                raise BrokenSeal("the sealed share has not been opened to its end")
            if self._check is not None:
                self._check.finish()
            committed = header.commitment_a if self._awaited.part.side is Side.A else header.commitment_b
            check_commitment(bytes.fromhex(committed), salt, key, self._digest.body_hash())
            self._make_durable()
            return header

    def close(self) -> None:
        """Nothing more comes of it."""
        with self._lock, suppress(OSError):
            self._close()

    def _close(self) -> None:
        """Afterwards what was written is durable."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                os.fdatasync(file)
            finally:
                os.close(file)

    def _make_durable(self) -> None:
        """Raises: OSError, and nothing that came counts: memory still has what the disk may have lost, and would pass
        for it."""
        try:
            self._close()
        except OSError:
            self._start_over()
            raise

    def _start_over(self) -> None:
        """Nothing is here, after a restart neither."""
        self._begin()
        with suppress(OSError):
            (self._folder / _HEAD).unlink()

    # --- as bytes come ---

    def _accept(self, raw: bytes) -> None:
        self._header = self._awaited.part.require(raw)

    def _take_head(self, head: Octets) -> None:
        self._begin()
        self._open_head(head)
        if self._refused is None:
            self._file = os.open(self.content, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_TRUNC, 0o600)
            write_durably(self._folder / _HEAD, bytes(head))
        self._digest.update(head)

    def _open_head(self, head: Octets) -> None:
        """What is wrong with it is said once the whole message's digest shows whose it is."""
        try:
            self._reader.feed(head)
            if self._reader.content_key is None or len(self._reader.head) != len(head):
                raise BrokenSeal("the sealed share's head is longer or shorter than it must be")
            self._body = KnownBody(self._reader.content_key, self._awaited.content_bytes)
        except RefusedMessage as refused:
            self._refused = refused

    def _take_chunk(self, chunk: Octets) -> None:
        if self._refused is None and self._body is not None:
            place, content = self._body.done * CHUNK_BYTES, bytearray(self._body.next_bytes)
            try:
                self._body.open_into(content, chunk)
            except BrokenSeal as broken:
                raise Unavailable(f"a part was altered on its way ({broken.detail}): send it again") from None
            try:
                self._write(content, place)
                self._look_at(content)
            except (OSError, MoietyError):
                self._take_up()  # as far as it is on disk
                raise
        self._digest.update(chunk)

    def _look_at(self, content: Octets) -> None:
        try:
            if self._check is not None:
                self._check.write(bytes(content))
        except RefusedMessage as refused:
            self._refused = refused
            (self._folder / _HEAD).unlink(missing_ok=True)  # after a restart it is looked at from its beginning

    def _write(self, content: Octets, place: int) -> None:
        if self._file is None:
            self._file = os.open(self.content, os.O_RDWR | os.O_CLOEXEC)
        view = octets(content)
        while view:
            count = os.pwrite(self._file, view, place)
            view, place = view[count:], place + count

    # --- after a restart ---

    def _take_up(self) -> None:
        """From head and content on disk; what does not fit, or cannot be made durable, is as if it had never come."""
        try:
            self._close()
            self._begin()
            head = (self._folder / _HEAD).read_bytes()
            self._open_head(head)
            if self._refused is not None or len(head) != self._awaited.head_bytes or self._body is None:
                raise BrokenSeal("what is on disk is no head of this upload")
            self._digest.update(head)
            with self.content.open("r+b", buffering=0) as file:
                content_bytes = sum(self._again(content) for content in self._whole_chunks(file, self._body))
                file.truncate(content_bytes)
                os.fdatasync(file.fileno())  # a process that was killed may have left it in memory alone
            self._held_bytes = len(head) + content_bytes + TAG_BYTES * self._body.done
        except (OSError, MoietyError):
            self._start_over()

    def _again(self, content: bytes) -> int:
        assert self._body is not None, "there is a head"
        self._digest.update(self._body.sealed_again(content))
        if self._check is not None:
            self._check.write(content)
        return len(content)

    @staticmethod
    def _whole_chunks(file: BinaryIO, body: KnownBody) -> Iterator[bytes]:
        while not body.ended:
            content = file.read(body.next_bytes)
            if len(content) < body.next_bytes:
                return
            yield content


@contextmanager
def _explained() -> Iterator[None]:
    """A full disk, and an upload that was given up meanwhile, as what a site can act upon."""
    try:
        yield
    except FileNotFoundError:
        raise Unavailable("this upload was given up meanwhile: ask how many bytes are here") from None
    except OSError as error:
        if is_full(error):
            raise StorageFull("the server's disk is full; the part was not stored: send it again later") from error
        raise
