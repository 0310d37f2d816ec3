"""A ledger's files: what is new line by line, what is older in numbered files, all of it counted once after any crash.

    ledger.jsonl           a head, then the lines of the last hours
    ledger/000001.jsonl    older ones, as a ledger sums them; a file more whenever one is full
    ledger/earlier.jsonl   a head, then the sums of files that are there no more
    ledger.lock            held for a moment by whichever process writes

The head of ``ledger.jsonl`` says how far the numbered files count: what is behind that was being written when a
process ended, and is written again. Its replacement by a rename is the one moment at which lines move.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from host.files import new_folder, sync_folder, write_durably, write_pieces

OPEN_BYTES: Final = 8 * 2**20
"""Of ledger.jsonl, at which all of it is summed whatever the hour: a clock may be years off."""
FILE_BYTES: Final = 4 * 2**20
FILES_KEPT: Final = 16
Lines = list[bytes]
H = TypeVar("H", bound=BaseModel)


class _Head(BaseModel):
    """Numbered files count up to ``in_bytes`` of file ``file``, the last one."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    file: int = 1
    in_bytes: int = 0


class _Earlier(BaseModel):
    """Files up to this one are in the sums."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    through: int = 0


class LedgerFiles:
    """Below one state folder; several processes may append, each with an object of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.with_suffix("")
        self._lock = path.with_suffix(".lock").open("ab")
        with self._locked():
            self._file = self._reopened()

    def close(self) -> None:
        self._file.close()
        self._lock.close()

    def append(self, line: bytes) -> int:
        """Add a line; -> bytes of the file that lines are added to. Raises: OSError, where no whole line has room"""
        with self._locked():
            try:
                moved = os.fstat(self._file.fileno()).st_ino != self._path.stat().st_ino
            except FileNotFoundError:
                moved = True
            if moved:
                opened = self._reopened()  # before the other one goes: there may be no room for another handle
                self._file.close()
                self._file = opened
            before = os.fstat(self._file.fileno()).st_size
            if self._file.write(line + b"\n") != len(line) + 1:  # what fits is written, and the rest is not
                self._file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return os.fstat(self._file.fileno()).st_size

    def fold(self, split: Callable[[Lines], tuple[Lines, Lines]], merge: Callable[[Lines], Lines]) -> None:
        """Move what ``split`` gives as older, the first of two, to the numbered files; the oldest of those beyond the
        bound become what ``merge`` makes of them. Raises: OSError, StorageFull; nothing is lost or doubled"""
        with self._locked():
            head, lines = _open_part(self._path)
            older, newer = split(lines)
            if older:
                head = self._add(head, older)
                write_pieces(self._path, [_line(head), *(line + b"\n" for line in newer)])
            while head.file - _earlier(self._folder)[0] > FILES_KEPT:
                self._drop(merge)

    def _add(self, head: _Head, lines: Lines) -> _Head:
        """-> the head that counts them; until it is written they are not there."""
        content = b"".join(line + b"\n" for line in lines)
        if head.in_bytes and head.in_bytes + len(content) > FILE_BYTES:
            head = _Head(file=head.file + 1)
        path = _numbered(new_folder(self._folder), head.file)
        with path.open("r+b" if path.exists() else "w+b") as file:
            head = head.model_copy(update={"in_bytes": min(head.in_bytes, os.fstat(file.fileno()).st_size)})
            file.truncate(head.in_bytes)
            file.seek(head.in_bytes)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)
        return _Head(file=head.file, in_bytes=head.in_bytes + len(content))

    def _drop(self, merge: Callable[[Lines], Lines]) -> None:
        through, sums = _earlier(self._folder)
        path = _numbered(self._folder, through + 1)
        dropped = path.read_bytes().splitlines() if path.exists() else []
        pieces = [_line(_Earlier(through=through + 1)), *(line + b"\n" for line in merge([*sums, *dropped]))]
        write_durably(_sums(self._folder), b"".join(pieces))
        for number in range(1, through + 2):
            _numbered(self._folder, number).unlink(missing_ok=True)

    def _reopened(self) -> FileIO:
        """Open for append, truncating a line that a crash cut off."""
        file = self._path.open("ab", buffering=0)
        held = self._path.read_bytes()
        if held and not held.endswith(b"\n"):
            file.truncate(held.rfind(b"\n") + 1)
        return file

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


def all_lines(path: Path) -> Lines:
    """Every line that counts, oldest first; one that a crash cut off at the end is left out."""
    lock = path.with_suffix(".lock")
    if not lock.exists():
        return _all_lines(path)
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        return _all_lines(path)


def _all_lines(path: Path) -> Lines:
    folder = path.with_suffix("")
    head, newest = _open_part(path)
    through, lines = _earlier(folder)
    for number in range(through + 1, head.file + 1):
        file = _numbered(folder, number)
        content = file.read_bytes() if file.exists() else b""
        lines += (content[: head.in_bytes] if number == head.file else content).splitlines()
    return lines + newest


def _open_part(path: Path) -> tuple[_Head, Lines]:
    if not path.exists():
        return _Head(), []
    lines = path.read_bytes().split(b"\n")[:-1]
    found = _head(_Head, lines)
    return (_Head(), lines) if found is None else (found, lines[1:])


def _earlier(folder: Path) -> tuple[int, Lines]:
    path = _sums(folder)
    lines = path.read_bytes().splitlines() if path.exists() else []
    found = _head(_Earlier, lines)
    return (0, lines) if found is None else (found.through, lines[1:])


def _head(kind: type[H], lines: Sequence[bytes]) -> H | None:
    """None for lines without a head, as an earlier version wrote them."""
    try:
        return kind.model_validate_json(lines[0])
    except (IndexError, ValidationError):
        return None


def _line(head: BaseModel) -> bytes:
    return head.model_dump_json().encode() + b"\n"


def _numbered(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.jsonl"


def _sums(folder: Path) -> Path:
    return folder / "earlier.jsonl"
