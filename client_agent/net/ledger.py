"""The egress ledger: every byte that leaves or enters this site, with what it was for.

One JSON line per request or TLS handshake, counted at the socket, below TLS, so that totals can be compared with a
firewall's. What is asked again and again while nothing happens becomes, an hour later, one line an hour; everything
else keeps its line until the file reaches its bound, and its sum for ever. No byte is left out or counted twice.

    ledger.jsonl    sums of earlier hours, then the lines of the last ones
    ledger.lock     held for a moment by whichever process writes

Lines become sums by one rename of the whole file. Earlier versions kept what is older in a folder ``ledger`` of
numbered files; it counts as long as ``ledger.jsonl`` begins with a head, and goes when lines are summed next.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import IO, Final

from pydantic import ValidationError

from host.files import end_of_lines, is_full, write_pieces
from host.frozen import Frozen
from protocol.errors import StorageFull

MOST_BYTES: Final = 2**25
"""The size at which all of the file is summed, whatever the hour: a clock may be years off. Half is for single lines
of earlier hours, so that a sum of all is soon made.
"""
HANDSHAKE: Final = "handshake"
CONNECTION: Final = "connection"
SUMMED: Final = frozenset({HANDSHAKE, CONNECTION, "list studies", "view"})
"""Purposes of an agent's requests whether or not anything happens."""
_BYTES: Final = ("body_sent_bytes", "body_received_bytes", "socket_sent_bytes", "socket_received_bytes")
_HOUR_S: Final = 3600
_HOURS_LINE_BY_LINE: Final = 2
_AGAIN_AFTER_LINES: Final = 100


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
    """The first line of an earlier version's ``ledger.jsonl``: numbered files count up to ``in_bytes`` of the last."""

    file: int = 1
    in_bytes: int = 0


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
        self._mutex = threading.Lock()
        self._lock = path.with_suffix(".lock").open("ab")
        with _held(self._lock, fcntl.LOCK_EX):
            self._file = self._reopened()
        unsummed = (entry.hour for entry in known if entry.count == 1 and entry.purpose in SUMMED)
        self._oldest_hour = min(unsummed, default=None)
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
        if (past or size_bytes > MOST_BYTES) and self._lines_until_next <= 0:
            self._lines_until_next = _AGAIN_AFTER_LINES
            with suppress(OSError, StorageFull):  # where there is no room for that, later; nothing is lost or doubled
                self._fold(None if size_bytes > MOST_BYTES else entry.hour)
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
        file = self._path.open("a+b", buffering=0)
        file.truncate(end_of_lines(file))
        return file

    def _fold(self, hour: int | None) -> None:
        """Sum what is older than the hours before ``hour``, or all."""
        last = math.inf if hour is None else hour - _HOURS_LINE_BY_LINE
        with _held(self._lock, fcntl.LOCK_EX):
            entries = [LedgerEntry.model_validate_json(line) for line in _lines(self._path)]
            newer = [one for one in entries if one.hour > last]
            older = _bounded(hourly(one for one in entries if one.hour <= last))
            write_pieces(self._path, (one.line() + b"\n" for one in (*older, *newer)))
            shutil.rmtree(self._path.with_suffix(""), ignore_errors=True)  # an earlier version's, and now in the file
        self._oldest_hour = min((one.hour for one in newer), default=None)


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
        lines = _lines(path)
    else:
        with lock.open("rb") as held, _held(held, fcntl.LOCK_SH):
            lines = _lines(path)
    return tuple(LedgerEntry.model_validate_json(line) for line in lines)


def _lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    try:
        head = _Head.model_validate_json(lines[0])
    except (IndexError, ValidationError):
        return lines
    return [*_lines_in_folder(path.with_suffix(""), head), *lines[1:]]


def _lines_in_folder(folder: Path, head: _Head) -> list[bytes]:
    """Return an earlier version's older lines: sums of its first files, then the files, the last in part."""
    sums, through, lines = folder / "earlier.jsonl", 0, list[bytes]()
    if sums.exists():
        first, *lines = sums.read_bytes().splitlines()
        through = json.loads(first)["through"]
    for number in range(through + 1, head.file + 1):
        file = folder / f"{number:06d}.jsonl"
        content = file.read_bytes() if file.exists() else b""
        lines += (content[: head.in_bytes] if number == head.file else content).splitlines()
    return lines


def hourly(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Those that are ``SUMMED`` as one for each hour, server, study, purpose and end; the others as they are.

    In their order: a sum stands where the first of it stood.
    """
    return _summed(entries, lambda one: (one.hour, *_kind(one)) if one.purpose in SUMMED else object())


def _bounded(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    """The last ones, of half the bound, behind a sum for each server, study, purpose and end of all before."""
    sizes = accumulate(len(one.line()) + 1 for one in reversed(entries))
    first = len(entries) - bisect_right(list(sizes), MOST_BYTES // 2)
    before = (one.model_copy(update={"purpose": without_number(one.purpose)}) for one in entries[:first])
    return [*_summed(before, _kind), *entries[first:]]


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
