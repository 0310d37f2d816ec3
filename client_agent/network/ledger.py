"""The egress ledger: every byte that leaves or enters this site, with what it was for.

One JSON line per request or TLS handshake, appended only. The socket counts are taken at the socket, below TLS, so that
the totals can be compared with what a firewall saw.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

HANDSHAKE = "handshake"
CONNECTION = "connection"


class LedgerEntry(BaseModel):
    """One exchange. Body bytes are what HTTP carried; socket bytes are all bytes, headers and TLS included."""

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


@dataclass(frozen=True)
class Totals:
    """Sums over the whole ledger."""

    entries: int = 0
    body_sent_bytes: int = 0
    body_received_bytes: int = 0
    socket_sent_bytes: int = 0
    socket_received_bytes: int = 0

    def with_entry(self, entry: LedgerEntry) -> Totals:
        return Totals(
            entries=self.entries + 1,
            body_sent_bytes=self.body_sent_bytes + entry.body_sent_bytes,
            body_received_bytes=self.body_received_bytes + entry.body_received_bytes,
            socket_sent_bytes=self.socket_sent_bytes + entry.socket_sent_bytes,
            socket_received_bytes=self.socket_received_bytes + entry.socket_received_bytes,
        )


class Ledger:
    """Append-only file; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._totals = Totals()
        for entry in read_ledger(path):
            self._totals = self._totals.with_entry(entry)
        self._file = path.open("a", encoding="utf-8")

    def append(self, entry: LedgerEntry) -> None:
        with self._lock:
            self._file.write(entry.model_dump_json() + "\n")
            self._file.flush()
            self._totals = self._totals.with_entry(entry)

    @property
    def totals(self) -> Totals:
        return self._totals

    def close(self) -> None:
        self._file.close()


def read_ledger(path: Path) -> tuple[LedgerEntry, ...]:
    """All complete lines; one that a crash cut off at the end is left out."""
    if not path.exists():
        return ()
    lines = path.read_text(encoding="utf-8").split("\n")
    return tuple(LedgerEntry.model_validate_json(line) for line in lines[:-1] if line.endswith("}"))
