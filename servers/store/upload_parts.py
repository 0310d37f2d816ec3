"""A sealed share that comes in parts, opened as it comes, and taken up again after a restart (docs/protocol.md 3).

    head              the sealed message's head, as it came
    content-RANDOM    the opened content, whole chunks of it

The state of a hash cannot be written down; but a key and a place have one encrypted form, so head and content give back
every sealed byte that came, and with them the hash.

What is summed must be the bytes that were checked. So each object writes to a file of its own, whose name no other ever
has; once it is given up, or whole, it writes nothing more, whichever request still holds it; and the file is compared
with what was checked after its last descriptor for writing is closed. Objects of one folder work in turn: who gives one
up does not wait for the thread at work in it, and that thread ends before the next object looks into the folder.

    uploads/STUDY/ROUND-ATTEMPT/SITE/DIGEST/    what this module keeps

A site has one upload in an attempt: another digest's takes the place of the one before, which is closed for good: a
part of it that is still on its way is refused. No row names these files; they go when the upload is complete, when the
next round is announced and when the study ends.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol
from weakref import WeakValueDictionary

from host.files import has_writer, is_full, new_folder, write_durably
from protocol.channel.commitment import MessageDigest, check_commitment
from protocol.channel.keys import SealingKey
from protocol.channel.sealing import (
    CHUNK_BYTES,
    TAG_BYTES,
    KnownBody,
    Octets,
    SealedReader,
    octets,
    sealed_head_length,
    sealed_length,
)
from protocol.errors import BrokenSeal, MoietyError, RefusedMessage, ShareAltered, StorageFull, Unavailable
from protocol.messages.bodies import Part
from protocol.messages.control import ContributionHeader
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.event_loop import SHORT_BYTES
from servers.store.chunk_tags import ChunkTags, Tagger, layout_of

CHUNKS_OF_A_PART: Final = 64
_HEAD: Final = "head"
_CONTENT: Final = "content"
_SEALED_CHUNK: Final = CHUNK_BYTES + TAG_BYTES


def _own_name() -> str:
    """A name for content that no other object has, in this process or a later one."""
    return f"{_CONTENT}-{secrets.token_hex(16)}"


def _new_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)


def _kept_later(piece: bytes) -> None:
    """Content goes to disk once it has been looked at."""


class NotAsChecked(Unavailable):
    """The file of a whole upload is not what was checked as it came: its site must send it again."""


class Check(Protocol):
    """Looks at opened content, in order and before it is written. Raises: what refuses it"""

    def write(self, piece: bytes) -> None: ...

    def finish(self) -> None: ...


NewCheck = Callable[[Callable[[bytes], None]], Check]
"""Makes what looks at opened content, and hands each piece on to its argument."""


@dataclass(frozen=True)
class Awaited:
    """The expected part of a contribution: its server, its key, and what else looks at its content."""

    key: SealingKey
    part: Part
    content_bytes: int
    new_check: NewCheck | None = None

    @property
    def at_once_bytes(self) -> int:
        """A body up to this length is opened on the event loop; none whose check may wait for a process."""
        return SHORT_BYTES if self.new_check is None else 0

    @property
    def head_bytes(self) -> int:
        """The head's length, whatever the commitments are."""
        return sealed_head_length(len(self.part.header({}).canonical()))

    @property
    def length(self) -> int:
        """The whole sealed message's."""
        return self.head_bytes + sealed_length(self.content_bytes)

    def unit_end(self, offset: int) -> int:
        """Return the end of the head or chunk that begins at ``offset``."""
        return self.head_bytes if offset == 0 else min(offset + _SEALED_CHUNK, self.length)

    def part_end(self, offset: int) -> int | None:
        """Return the end of a part that begins at ``offset``; None, where no part begins."""
        part_bytes, beyond = CHUNKS_OF_A_PART * _SEALED_CHUNK, offset - self.head_bytes
        if offset >= self.length or (offset and (beyond < 0 or beyond % _SEALED_CHUNK)):
            return None
        return min(self.head_bytes + (max(beyond, 0) // part_bytes + 1) * part_bytes, self.length)


class ShareInParts:
    """One upload's state. Blocks: for threads. Safe to use from several: each says where its bytes belong.

    ``turns``: the lock of all objects of this folder. What the folder holds is taken up by the first method that needs
    it, since that takes as long as the upload is large.
    """

    def __init__(
        self,
        folder: Path,
        awaited: Awaited,
        after_piece: Callable[[], None] = lambda: None,
        turns: threading.Lock | None = None,
    ) -> None:
        self._folder = folder
        self._awaited = awaited
        self._after_piece = after_piece
        self._turns = turns or threading.Lock()
        self._lock = threading.Lock()  # around the marks below, never around work
        self._file: int | None = None
        self._at_work = False
        self._given_up = False
        self._taken_up = False
        self._whole = False
        self._begin()

    def _begin(self) -> None:
        with suppress(OSError):
            self._close()
        self._digest = MessageDigest()
        self._reader = SealedReader(self._awaited.key, self._accept)
        self._header: ContributionHeader | None = None
        self._body: KnownBody | None = None
        self._check = None if self._awaited.new_check is None else self._awaited.new_check(_kept_later)
        self._tagger = Tagger(layout_of(self._awaited.part.kind))
        self._content = self._folder / _own_name()
        self._refused: RefusedMessage | None = None
        self._held_bytes = 0

    @property
    def content(self) -> Path:
        return self._content

    @property
    def content_key(self) -> bytes:
        """The body's. Raises: BrokenSeal, before the head came"""
        if self._reader.content_key is None:
            raise BrokenSeal("the sealed share's head has not come")
        return self._reader.content_key

    def encrypted_body(self) -> Iterator[bytes]:
        """The bytes behind the head as they came, of a share that is finished."""
        body, tags = KnownBody(self.content_key, self._awaited.content_bytes), self._tags()
        with self.content.open("rb", buffering=0) as file:
            while not body.ended:
                place, content = body.done * CHUNK_BYTES, file.read(body.next_bytes)
                if len(content) != body.next_bytes:
                    raise tags.altered(place)
                tags.require(place, content)
                yield body.sealed_again(content)

    def held_bytes(self) -> int:
        """Return the durable bytes of the sealed message: the head and whole chunks.

        Raises: Unavailable, once it is given up; StorageFull, where what came could not be made durable; then none are
                here any more
        """
        with _explained(), self._working():
            self._make_durable()
            return self._held_bytes

    def take(self, at: int, unit: Octets) -> None:
        """The head, or the chunk, that begins at ``at``.

        A request whose body is held back comes here long after it was let in, so all is looked at again, each time.
        Raises: Unavailable, when others are here already, it was altered on its way, or the upload is given up or
                whole; StorageFull
        """
        with self._working():
            if self._whole or at != self._held_bytes:
                raise Unavailable("these bytes are here already: ask how many are, and go on there")
            with _explained():
                (self._take_head if at == 0 else self._take_chunk)(unit)
            self._held_bytes += len(octets(unit))
        self._after_piece()

    def finish(self, require_digest: Callable[[bytes], None]) -> tuple[ContributionHeader, bytes]:
        """The header and the content's tags, once all is here and is what ``require_digest`` takes.

        From here on nothing is written; then the file is read once more and compared with what was checked.

        Raises: what that raises; what was refused on the way; BrokenSeal, CommitmentMismatch; Unavailable, once it is
                given up, or while another process has the file open; NotAsChecked; StorageFull, as ``held_bytes``
        """
        with _explained():
            header = self._finish(require_digest)
            self._require_as_checked()
            return header, self._tagger.finish()

    def _finish(self, require_digest: Callable[[bytes], None]) -> ContributionHeader:
        with self._working():
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
            self._whole = True
            return header

    def _require_as_checked(self) -> None:
        """Without the lock: large files take seconds, and nobody here writes any more.

        Where no lease can be had, that rests on the flags and names above, and on the tags that every reader compares.
        """
        with self.content.open("rb", buffering=0) as file:
            if has_writer(file):
                raise Unavailable("the contribution's file is still open elsewhere on this server: ask again")
            try:
                self._tags().require_file(file)
            except ShareAltered:
                raise NotAsChecked("the parts were altered on this server's disk: send them again") from None

    def _tags(self) -> ChunkTags:
        of = self._awaited
        return ChunkTags(of.part.site, of.content_bytes, layout_of(of.part.kind), self._tagger.finish())

    def close(self) -> None:
        """Give it up: nothing more comes of it, whoever still holds it. Never waits: a thread that is at work in it
        removes what it wrote."""
        with self._lock, suppress(OSError):
            given_up, self._given_up = self._given_up, True
            if not given_up and not self._at_work:
                self._let_go()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """One thread at a time, with all that is on disk taken up. Raises: Unavailable, once it is given up"""
        with self._turns:
            with self._lock:
                self._require_going()
                self._at_work = True
            try:
                if not self._taken_up:
                    self._take_up()
                    self._require_going()
                    self._taken_up = True
                yield
            finally:
                with self._lock:
                    self._at_work, given_up = False, self._given_up
                if given_up:
                    self._leave_nothing()

    def _leave_nothing(self) -> None:
        with suppress(OSError):
            self._let_go()
        with suppress(OSError):
            self._forget_files()

    def _let_go(self) -> None:
        """Without a sync: it counts for nothing any more."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def _require_going(self) -> None:
        if self._given_up:
            raise Unavailable("this upload was given up meanwhile: ask how many bytes are here")

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
            self._forget_files()

    def _forget_files(self) -> None:
        (self._folder / _HEAD).unlink(missing_ok=True)
        for path in self._folder.glob(f"{_CONTENT}*"):
            path.unlink(missing_ok=True)

    # --- as bytes come ---

    def _accept(self, raw: bytes) -> None:
        self._header = self._awaited.part.require(raw)

    def _take_head(self, head: Octets) -> None:
        self._begin()
        self._open_head(head)
        if self._refused is None:
            self._forget_files()
            self._file = _new_file(self.content)
            write_durably(self._folder / _HEAD, bytes(head))
        self._digest.update(head)

    def _open_head(self, head: Octets) -> None:
        """Open the head; a fault in it is reported once the whole message's digest shows whose it is."""
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
                self._look_at(content)
                if self._refused is None:
                    self._write(content, place)
                    self._tagger.write(content)
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
        """Take up head and content on disk; what does not fit, or cannot be made durable, is as if it had never come.

        The file gets a new name. One that has a second name is a stored share already, and is never written to again.
        """
        try:
            self._close()
            self._begin()
            (found,) = self._folder.glob(f"{_CONTENT}*")
            if found.stat().st_nlink != 1:
                raise BrokenSeal("what is on disk is a stored share")
            found.rename(self.content)
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
        except (OSError, ValueError, MoietyError):  # ValueError: not one file of content
            self._start_over()

    def _again(self, content: bytes) -> int:
        self._require_going()
        assert self._body is not None, "there is a head"
        self._digest.update(self._body.sealed_again(content))
        if self._check is not None:
            self._check.write(content)
        self._tagger.write(content)
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


@dataclass(frozen=True)
class Upload:
    """An upload: a sealed message of ``length`` bytes with this signed digest, hexadecimal."""

    key: RoundKey
    site: str
    digest: str
    length: int


class UploadParts:
    """The folder of all uploads; names of studies are digests, of sites the roster's."""

    def __init__(self, folder: Path, after_piece: Callable[[], None] = lambda: None) -> None:
        self._folder = new_folder(folder)
        self._after_piece = after_piece
        self._open: dict[Upload, ShareInParts] = {}
        # a folder's next object waits for one that was given up and is still at work
        self._turns: WeakValueDictionary[Upload, threading.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()

    def share(self, upload: Upload, awaited: Awaited) -> ShareInParts:
        """As far as it has come, after a restart too; anew, where another process has taken its folder away.

        Blocks: for threads, where it was not asked for before; the event loop waits for the same lock, so that nothing
        is read or opened here.
        """
        with self._lock:
            found, folder = self._open.get(upload), self._of(upload)
            if found is None or not folder.is_dir():
                if not folder.is_dir():
                    self._forget(folder.parent)
                for place in (folder.parents[2], folder.parents[1], folder.parent, folder):
                    new_folder(place)
                turns = self._turns.setdefault(upload, threading.Lock())
                found = self._open[upload] = ShareInParts(folder, awaited, self._after_piece, turns)
            return found

    def begun(self, upload: Upload) -> bool:
        return self._of(upload).is_dir()

    def drop(self, upload: Upload) -> None:
        """All that this site has sent of the attempt."""
        with self._lock:
            self._forget(self._of(upload).parent)

    def keep_only(self, study: str, key: RoundKey | None) -> None:
        """Keep, of the study's uploads, those to one attempt; None: none."""
        folder = self._folder / study
        with self._lock:  # whose folder another process may have taken away
            for upload in [one for one in self._open if one.key.study == study and one.key != key]:
                self._open.pop(upload).close()
        for path in list(folder.iterdir()) if folder.is_dir() else []:
            if key is None or path.name != _attempt(key):
                with self._lock:
                    self._forget(path)

    def studies(self) -> list[str]:
        return [path.name for path in self._folder.iterdir()]

    def _forget(self, folder: Path) -> None:
        for upload in [upload for upload in self._open if folder in self._of(upload).parents]:
            self._open.pop(upload).close()
        shutil.rmtree(folder, ignore_errors=True)

    def _of(self, upload: Upload) -> Path:
        return self._folder / upload.key.study / _attempt(upload.key) / upload.site / upload.digest


def _attempt(key: RoundKey) -> str:
    return f"{key.round:06d}-{key.attempt:02d}"
