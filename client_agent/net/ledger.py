"""The egress ledger: every byte that leaves or enters this site, with what it was for.

One JSON line per request or TLS handshake, counted at the socket, below TLS, so that totals can be compared with a
firewall's. What is asked again and again while nothing happens becomes, an hour later, one line an hour; everything
else keeps its line until the files reach their bound, and its sum for ever. No byte is left out or counted twice.

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
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Final, TypeVar

from pydantic import BaseModel, ValidationError

from host.files import is_full, new_folder, sync_folder, write_durably, write_pieces
from host.frozen import Frozen
from protocol.errors import StorageFull

OPEN_BYTES: Final = 8 * 2**20
"""The size of ledger.jsonl at which all of it is summed, whatever the hour: a clock may be years off."""
FILE_BYTES: Final = 4 * 2**20
FILES_KEPT: Final = 16
HANDSHAKE: Final = "handshake"
CONNECTION: Final = "connection"
SUMMED: Final = frozenset({HANDSHAKE, CONNECTION, "list studies", "view"})
"""Purposes of an agent's requests whether or not anything happens."""
_BYTES: Final = ("body_sent_bytes", "body_received_bytes", "socket_sent_bytes", "socket_received_bytes")
_HOUR_S: Final = 3600
_HOURS_LINE_BY_LINE: Final = 2
_AGAIN_AFTER_LINES: Final = 100
Lines = list[bytes]
H = TypeVar("H", bound=BaseModel)


class LedgerEntry(Frozen):
    """One exchange, or the sum of ``count`` alike, the last of them begun at ``last_s``.

    Body bytes are what HTTP carried; socket bytes are all bytes, headers and TLS included. ``study`` is the one that a
    request was about, None where it was about none.
    """

    time_s: float
    server: str
    method: str
    path: str
    purpose: str
    status: int | None
    body_sent_bytes: int
    body_received_bytes: int
    socket_sent_bytes: int
    socket_received_bytes: int
    tls_version: str | None
    count: int = 1
    last_s: float | None = None
    study: str | None = None

    @property
    def hour(self) -> int:
        return int(self.time_s // _HOUR_S)

    def and_(self, other: LedgerEntry) -> LedgerEntry:
        last_s = max(self.last_s or self.time_s, other.last_s or other.time_s)
        summed = {name: getattr(self, name) + getattr(other, name) for name in ("count", *_BYTES)}
        return self.model_copy(update={"time_s": min(self.time_s, other.time_s), "last_s": last_s, **summed})

    def line(self) -> bytes:
        return self.model_dump_json(exclude_defaults=True).encode()


@dataclass(frozen=True)
class Totals:
    """Sums over the whole ledger; ``entries`` is the number of exchanges."""

    entries: int = 0
    body_sent_bytes: int = 0
    body_received_bytes: int = 0
    socket_sent_bytes: int = 0
    socket_received_bytes: int = 0

    def with_entry(self, entry: LedgerEntry) -> Totals:
        return Totals(self.entries + entry.count, *(getattr(self, name) + getattr(entry, name) for name in _BYTES))


class _Head(Frozen):
    """Numbered files count up to ``in_bytes`` of file ``file``, the last one."""

    file: int = 1
    in_bytes: int = 0


class _Earlier(Frozen):
    """Files up to this one are in the sums."""

    through: int = 0


class Ledger:
    """Entries are only ever added; safe to use from several threads, and beside another process's.

    What finds a full disk is kept until there is room, and ``require_room`` lets nothing more leave before.
    """

    def __init__(self, path: Path) -> None:
        known = read_ledger(path)
        self.totals = Totals()
        for entry in known:
            self.totals = self.totals.with_entry(entry)
        self._path = path
        self._folder = path.with_suffix("")
        self._mutex = threading.Lock()
        self._lock = path.with_suffix(".lock").open("ab")
        with _held(self._lock, fcntl.LOCK_EX):
            self._file = self._reopened()
        self._oldest_hour = min((entry.hour for entry in known if entry.count == 1), default=None)
        self._lines_until_next = 0
        self._unwritten: list[LedgerEntry] = []

    def close(self) -> None:
        self._file.close()
        self._lock.close()

    def append(self, entry: LedgerEntry) -> None:
        with self._mutex:
            self._unwritten.append(entry)
            self._write_all()

    def require_room(self) -> None:
        """Before anything leaves: return if what has left is on the disk. Raises: StorageFull"""
        with self._mutex:
            self._write_all()
            if self._unwritten:
                raise StorageFull("no space left for the ledger: nothing leaves that is not noted; free space")

    def _write_all(self) -> None:
        while self._unwritten:
            try:
                self._write(self._unwritten[0])
            except OSError as error:
                if not is_full(error):
                    raise
                return
            self._unwritten.pop(0)

    def _write(self, entry: LedgerEntry) -> None:
        size_bytes = self._add_line(entry.line())
        self.totals = self.totals.with_entry(entry)
        self._oldest_hour = entry.hour if self._oldest_hour is None else self._oldest_hour
        self._lines_until_next -= 1
        past = self._oldest_hour <= entry.hour - _HOURS_LINE_BY_LINE
        if (past or size_bytes > OPEN_BYTES) and self._lines_until_next <= 0:
            self._lines_until_next = _AGAIN_AFTER_LINES
            with suppress(OSError, StorageFull):  # where there is no room for that, later; nothing is lost or doubled
                self._fold(None if size_bytes > OPEN_BYTES else entry.hour)
                self._lines_until_next = 0

    def _add_line(self, line: bytes) -> int:
        """-> bytes of the file that lines are added to. Raises: OSError, where no whole line has room"""
        with _held(self._lock, fcntl.LOCK_EX):
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

    def _reopened(self) -> FileIO:
        """Open for append, truncating a line that a crash cut off."""
        file = self._path.open("ab", buffering=0)
        held = self._path.read_bytes()
        if held and not held.endswith(b"\n"):
            file.truncate(held.rfind(b"\n") + 1)
        return file

    def _fold(self, hour: int | None) -> None:
        """Sum what is older than the hours before ``hour``, or all, into numbered files, whose oldest ones go."""
        with _held(self._lock, fcntl.LOCK_EX):
            head, lines = _open_part(self._path)
            entries = [LedgerEntry.model_validate_json(line) for line in lines]
            older = [one for one in entries if hour is None or one.hour <= hour - _HOURS_LINE_BY_LINE]
            newer = [one for one in entries if not (hour is None or one.hour <= hour - _HOURS_LINE_BY_LINE)]
            if older:
                head = self._add(head, b"".join(one.line() + b"\n" for one in hourly(older)))
                write_pieces(self._path, [_line(head), *(one.line() + b"\n" for one in newer)])
            while head.file - _earlier(self._folder)[0] > FILES_KEPT:
                self._drop()
        self._oldest_hour = min((one.hour for one in newer), default=None)

    def _add(self, head: _Head, content: bytes) -> _Head:
        """-> the head that counts them; until it is written they are not there."""
        if head.in_bytes and head.in_bytes + len(content) > FILE_BYTES:
            full = _numbered(self._folder, head.file)
            if full.exists() and full.stat().st_size > head.in_bytes:  # added before a crash, and counted by no head
                os.truncate(full, head.in_bytes)
            head = _Head(file=head.file + 1)
        path = _numbered(new_folder(self._folder), head.file)
        with path.open("r+b" if path.exists() else "w+b") as file:
            begin = min(head.in_bytes, os.fstat(file.fileno()).st_size)
            file.truncate(begin)
            file.seek(begin)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)
        return _Head(file=head.file, in_bytes=begin + len(content))

    def _drop(self) -> None:
        """The oldest numbered file becomes part of the sums."""
        through, sums = _earlier(self._folder)
        path = _numbered(self._folder, through + 1)
        dropped = path.read_bytes().splitlines() if path.exists() else []
        pieces = [_line(_Earlier(through=through + 1)), *(line + b"\n" for line in _merged([*sums, *dropped]))]
        write_durably(_sums(self._folder), b"".join(pieces))
        for number in range(1, through + 2):
            _numbered(self._folder, number).unlink(missing_ok=True)


@contextmanager
def _held(lock: IO[bytes], kind: int) -> Iterator[None]:
    fcntl.flock(lock, kind)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def read_ledger(path: Path) -> tuple[LedgerEntry, ...]:
    """All that is in a ledger, sums of earlier hours first; a line that a crash cut off at the end is left out."""
    lock = path.with_suffix(".lock")
    if not lock.exists():
        lines = _all_lines(path)
    else:
        with lock.open("rb") as held, _held(held, fcntl.LOCK_SH):
            lines = _all_lines(path)
    return tuple(LedgerEntry.model_validate_json(line) for line in lines if line.endswith(b"}"))


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


def hourly(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Those that are ``SUMMED`` as one for each hour, server, study, purpose and end; the others as they are.

    In their order: a sum stands where the first of it stood.
    """
    return _summed(entries, lambda one: (one.hour, *_kind(one)) if one.purpose in SUMMED else object())


def _summed(entries: Iterable[LedgerEntry], key: Callable[[LedgerEntry], object]) -> list[LedgerEntry]:
    found: dict[object, LedgerEntry] = {}
    for entry in entries:
        of = key(entry)
        found[of] = found[of].and_(entry) if of in found else entry
    return list(found.values())


def _kind(entry: LedgerEntry) -> tuple[object, ...]:
    return (entry.server, entry.study, entry.method, entry.path, entry.purpose, entry.status, entry.tls_version)


def without_number(purpose: str) -> str:
    """A letter's topic without the number of its round or model."""
    return purpose.rstrip("0123456789").rstrip("-")


def by_purpose(entries: Iterable[LedgerEntry]) -> dict[tuple[str, str], Totals]:
    """Sums for each server and purpose, letters of all rounds together, in alphabetical order."""
    found: dict[tuple[str, str], Totals] = {}
    for entry in entries:
        key = (entry.server, without_number(entry.purpose))
        found[key] = found.get(key, Totals()).with_entry(entry)
    return dict(sorted(found.items()))


def _merged(lines: Lines) -> Lines:
    """One line for each server, study, purpose and end, whenever it was; as many as there are kinds of exchanges."""
    entries = (LedgerEntry.model_validate_json(line) for line in lines)
    whole = (one.model_copy(update={"purpose": without_number(one.purpose)}) for one in entries)
    return [one.line() for one in _summed(whole, _kind)]
