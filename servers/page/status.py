"""How a server is, for its operator: ready or not, its peer, its storage, its certificate, and what is to be done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fastapi import FastAPI

from protocol.errors import ErrorCode
from protocol.sharing import Side
from protocol.wire.channel.signing import MAX_AGE_S, MAX_SKEW_S
from servers.monitoring.recent import Refused
from servers.page.fixes import ALARMS, FIXES
from servers.readiness import Readiness
from servers.server import Server

_NOTABLE_S: Final = 2.0
_SOON_FULL: Final = 4


@dataclass(frozen=True)
class Alarm:
    """Something that a person must look at, and what to do."""

    what: str
    do: str


@dataclass(frozen=True)
class PeerStatus:
    """The times are since 1970 and in seconds; None while the peer was not heard of since this server's start."""

    name: str
    seen_at_s: float | None
    ahead_s: float | None
    session_open: bool


@dataclass(frozen=True)
class KeptFiles:
    """How many files of a kind there are, and their bytes."""

    kind: str
    count: int
    size_bytes: int


@dataclass(frozen=True)
class StorageStatus:
    """Bytes on this server's disk; the database's kind without its address, which can hold a password."""

    free_bytes: int
    reserve_bytes: int
    database: str
    database_bytes: int
    files: tuple[KeptFiles, ...]


@dataclass(frozen=True)
class RefusalCount:
    """Requests refused with this code since the server's start."""

    code: str
    count: int
    fix: str
    alarm: bool


@dataclass(frozen=True)
class Status:
    """Everything of the first page but the studies."""

    ready: bool
    alarms: tuple[Alarm, ...]
    peer: PeerStatus
    storage: StorageStatus
    certificate_ends_s: float | None


def status_of(app: FastAPI, readiness: Readiness) -> Status:
    """As it was at the last look, which is soon repeated; reads the database, and asks the peer nothing."""
    server: Server = app.state.server
    readiness.look_soon()
    peer, storage = _peer(app, server), _storage(server)
    certificate = server.certificate
    return Status(
        ready=readiness.found is None,
        alarms=tuple(_alarms(server, readiness, peer, storage)),
        peer=peer,
        storage=storage,
        certificate_ends_s=None if certificate is None else certificate.expires_s,
    )


def refusals(server: Server) -> tuple[tuple[RefusalCount, ...], tuple[Refused, ...]]:
    """Counts since the start, alarms first, and the last refusals, the newest first."""
    counted = {
        code: int(server.metrics.registry.get_sample_value("moiety_refusals_total", {"code": code.value}) or 0)
        for code in ErrorCode
    }
    rows = [RefusalCount(code.value, n, FIXES[code], code in ALARMS) for code, n in counted.items() if n]
    return tuple(sorted(rows, key=lambda row: (not row.alarm, -row.count))), server.recent.refused


def _peer(app: FastAPI, server: Server) -> PeerStatus:
    seen = server.recent.peer
    if not server.drives:
        session_open = False
    elif server.side is Side.A:
        session_open = bool(app.state.pool.session_open)
    else:
        session_open = bool(app.state.answering.sessions.session_open)
    return PeerStatus(server.peer.name, seen.at_s, seen.ahead_s, session_open)


def _storage(server: Server) -> StorageStatus:
    kept = []
    for kind, names in server.store.kept().items():
        paths = [server.files.path(name) for name in names]
        kept.append(KeptFiles(kind.value, len(names), sum(path.stat().st_size for path in paths if path.exists())))
    return StorageStatus(
        free_bytes=server.files.free_bytes(),
        reserve_bytes=server.settings.limits.disk_reserve_bytes,
        database=server.settings.database.partition(":")[0],
        database_bytes=server.store.size_bytes(),
        files=tuple(kept),
    )


def _alarms(server: Server, readiness: Readiness, peer: PeerStatus, storage: StorageStatus) -> Iterator[Alarm]:
    found = readiness.found
    if found is not None:
        yield Alarm(f"not ready: {found.detail}", FIXES[found.code])
    for remark in readiness.remarks().values():
        yield Alarm(f"the certificate {remark}", "a renewed one is taken up within a minute, without a restart")
    if storage.reserve_bytes < storage.free_bytes < _SOON_FULL * storage.reserve_bytes:
        yield Alarm("the disk is soon full", FIXES[ErrorCode.STORAGE_FULL])
    ahead = peer.ahead_s or 0.0
    if not -MAX_AGE_S < ahead < MAX_SKEW_S:
        yield Alarm(_clock(ahead), "set the clock that is wrong by NTP: requests are refused as they are now")
    elif abs(ahead) > _NOTABLE_S:
        yield Alarm(_clock(ahead), "let NTP set both clocks, before they are too far apart")
    counts, _ = refusals(server)
    for row in counts:
        if row.alarm:
            yield Alarm(f"{row.count} times {row.code} since the start", row.fix)


def _clock(ahead_s: float) -> str:
    return f"this clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the other server's"
