"""The egress ledger: every byte that leaves or enters this site, with what it was for.

One JSON line per request or TLS handshake. The socket counts are taken at the socket, below TLS, so that the totals can
be compared with what a firewall saw. What is asked again and again while nothing happens becomes, an hour later, one
line an hour; everything else keeps its own line until the files reach their bound, and its sum for ever
(``ledger_files``). No byte is left out or counted twice by that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from client_agent.network.ledger_files import OPEN_BYTES, LedgerFiles, Lines, all_lines
from host.files import is_full
from protocol.errors import StorageFull

HANDSHAKE = "handshake"
CONNECTION = "connection"
SUMMED: Final = frozenset({HANDSHAKE, CONNECTION, "list studies", "view"})
"""What an agent does whether or not anything happens."""
_HOUR_S: Final = 3600
_HOURS_LINE_BY_LINE: Final = 2
_AGAIN_AFTER_LINES: Final = 100


class LedgerEntry(BaseModel):
    """One exchange, or the sum of ``count`` alike, the last of them begun at ``last_s``.

    Body bytes are what HTTP carried; socket bytes are all bytes, headers and TLS included. ``study`` is the one that a
    request was about, None where it was about none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        """The sum of two that are alike."""
        ends = (self.last_s or self.time_s, other.last_s or other.time_s)
        return self.model_copy(
            update={
                "time_s": min(self.time_s, other.time_s),
                "last_s": max(ends),
                "count": self.count + other.count,
                "body_sent_bytes": self.body_sent_bytes + other.body_sent_bytes,
                "body_received_bytes": self.body_received_bytes + other.body_received_bytes,
                "socket_sent_bytes": self.socket_sent_bytes + other.socket_sent_bytes,
                "socket_received_bytes": self.socket_received_bytes + other.socket_received_bytes,
            }
        )

    def line(self) -> bytes:
        """As a ledger has it."""
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
        return Totals(
            entries=self.entries + entry.count,
            body_sent_bytes=self.body_sent_bytes + entry.body_sent_bytes,
            body_received_bytes=self.body_received_bytes + entry.body_received_bytes,
            socket_sent_bytes=self.socket_sent_bytes + entry.socket_sent_bytes,
            socket_received_bytes=self.socket_received_bytes + entry.socket_received_bytes,
        )


class Ledger:
    """Entries are only ever added; safe to use from several threads, and beside another process's.

    What finds a full disk is kept until there is room, and ``require_room`` lets nothing more leave before.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._totals = Totals()
        known = read_ledger(path)
        for entry in known:
            self._totals = self._totals.with_entry(entry)
        self._files = LedgerFiles(path)
        self._oldest_hour = min((entry.hour for entry in known if entry.count == 1), default=None)
        self._lines_until_next = 0
        self._unwritten: list[LedgerEntry] = []

    def append(self, entry: LedgerEntry) -> None:
        with self._lock:
            self._unwritten.append(entry)
            self._write_all()

    def require_room(self) -> None:
        """Before anything leaves: return if what has left is on the disk. Raises: StorageFull"""
        with self._lock:
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
        size_bytes = self._files.append(entry.line())
        self._totals = self._totals.with_entry(entry)
        self._oldest_hour = entry.hour if self._oldest_hour is None else self._oldest_hour
        self._lines_until_next -= 1
        past = self._oldest_hour <= entry.hour - _HOURS_LINE_BY_LINE
        if (past or size_bytes > OPEN_BYTES) and self._lines_until_next <= 0:
            self._fold(None if size_bytes > OPEN_BYTES else entry.hour)

    def _fold(self, hour: int | None) -> None:
        """Sum what is older than the hours before ``hour``, or all. Where there is no room for that, later."""
        newer: Lines = []

        def split(lines: Lines) -> tuple[Lines, Lines]:
            entries = [LedgerEntry.model_validate_json(line) for line in lines]
            old = [one for one in entries if hour is None or one.hour <= hour - _HOURS_LINE_BY_LINE]
            newer[:] = [one.line() for one in entries if not (hour is None or one.hour <= hour - _HOURS_LINE_BY_LINE)]
            return [one.line() for one in hourly(old)], newer

        self._lines_until_next = _AGAIN_AFTER_LINES
        with suppress(OSError, StorageFull):
            self._files.fold(split, _merged)
            self._lines_until_next = 0
            self._oldest_hour = min((LedgerEntry.model_validate_json(one).hour for one in newer), default=None)

    @property
    def totals(self) -> Totals:
        return self._totals

    def close(self) -> None:
        self._files.close()


def read_ledger(path: Path) -> tuple[LedgerEntry, ...]:
    """All that is in a ledger, sums of earlier hours first; a line that a crash cut off at the end is left out."""
    return tuple(LedgerEntry.model_validate_json(line) for line in all_lines(path) if line.endswith(b"}"))


def hourly(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Those that are ``SUMMED`` as one for each hour, server, study, purpose and end; the others as they are.

    In their order: a sum stands where the first of it stood.
    """
    found: dict[object, LedgerEntry] = {}
    for number, entry in enumerate(entries):
        kind = (entry.hour, *_kind(entry))
        key: object = kind if entry.purpose in SUMMED else number
        found[key] = found[key].and_(entry) if key in found else entry
    return list(found.values())


def _kind(entry: LedgerEntry) -> tuple[object, ...]:
    """Return the key by which exchanges are summed."""
    return (entry.server, entry.study, entry.method, entry.path, entry.purpose, entry.status, entry.tls_version)


def without_number(purpose: str) -> str:
    """A letter's topic without the number of its round or model."""
    return purpose.rstrip("0123456789").rstrip("-")


def _merged(lines: Lines) -> Lines:
    """One line for each server, study, purpose and end, whenever it was; as many as there are kinds of exchanges."""
    found: dict[object, LedgerEntry] = {}
    for entry in (LedgerEntry.model_validate_json(line) for line in lines):
        whole = entry.model_copy(update={"purpose": without_number(entry.purpose)})
        key = _kind(whole)
        found[key] = found[key].and_(whole) if key in found else whole
    return [one.line() for one in found.values()]
