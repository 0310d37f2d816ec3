"""A server's status for its operator: readiness, alarms with their remedies, peer, disk, refusals, studies.

The running server makes the picture and shows it at ``/status`` of the operator's own port, only to a caller who can
read ``data_dir/status-token``: it names studies and sites, which the metrics on that port do not. No share, digest of
one, distance, weight, mask or key is in it.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from fastapi import FastAPI

from host.files import read_secret
from host.folder_lock import one_at_a_time
from host.frozen import Frozen
from host.output_files import write_new
from host.settings import require_begun
from protocol.channel.signing import MAX_AGE_S, MAX_SKEW_S
from protocol.errors import ErrorCode, MoietyError, PeerUnreachable, Unavailable, UnknownStudy
from protocol.messages.control import Roster, RoundState
from protocol.roster.chain import RosterChain
from protocol.sharing import Side
from protocol.text import printable
from servers.identity.roster import load_identity
from servers.monitoring import Refused
from servers.problems import ALARMS, FIXES
from servers.server import Server
from servers.settings import ServerSettings
from servers.store.database import database_exists
from servers.store.records import RoundRecord, SeenRound, StudyRecord
from servers.store.sql import SqlStore

_READY_KEPT_S: Final = 5.0
_NOT_READY_KEPT_S: Final = 0.5


class Readiness:
    """The last look and what it found; the peer is called at most twice per second, and every 5 s while all is well."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._lock = asyncio.Lock()
        self._found: MoietyError | None = None
        self._until_s = 0.0
        self._looking: asyncio.Task[None] | None = None

    async def require(self) -> None:
        """Raises: Unavailable, PeerUnreachable; as it was at the last look"""
        await self._look_if_old()
        if self._found is not None:
            raise self._found

    async def look(self, within_s: float) -> MoietyError | None:
        """Return what is missing as of the last look; a peer that does not answer in time is missing."""
        done, _ = await asyncio.wait({self.look_soon()}, timeout=within_s)
        return self._found if done else PeerUnreachable(f"the peer has not answered for {within_s:g} s")

    def look_soon(self) -> asyncio.Task[None]:
        """Without waiting for what is found: a peer that does not answer must not keep whoever asks for metrics."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_if_old())
        return self._looking

    async def _look_if_old(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() >= self._until_s:
                self._found = None
                try:
                    await self._require_now()
                except MoietyError as missing:
                    self._found = missing
                self._until_s = loop.time() + (_READY_KEPT_S if self._found is None else _NOT_READY_KEPT_S)
                server: Server = self._app.state.server
                server.metrics.ready.set(self._found is None)

    def seen(self) -> dict[str, str]:
        """The things looked at for this process, when all is well."""
        server: Server = self._app.state.server
        return {"peer": "ok", "ot_session": "open"} if server.drives else {"driver": "another process"}

    def remarks(self) -> dict[str, str]:
        """The remarks that do not keep this server from serving, and soon will."""
        server: Server = self._app.state.server
        found = None if server.certificate is None else server.certificate.remark(server.clock())
        return {} if found is None else {"certificate": found}

    async def _require_now(self) -> None:
        """Room is left, sites can connect, the database answers, the peer can be reached, an OT session is open."""
        state = self._app.state
        server: Server = state.server
        server.history.require_current()
        server.files.require_room(0)
        if server.certificate is not None:
            server.certificate.require_valid(server.clock())
        server.store.ready()
        if not server.drives:
            server.store.require_driver()
        elif server.side is Side.A:
            await state.peer.reachable()
            if not _session_open(self._app):
                raise Unavailable("no OT session is open with the peer yet; one is opened when a study needs it")
        elif not _session_open(self._app):
            raise PeerUnreachable("side A has not opened an OT session here yet")


def _session_open(app: FastAPI) -> bool:
    """Tell whether the process that drives has an OT session with the peer."""
    state = app.state
    return bool((state.pool if state.server.side is Side.A else state.answering.sessions).session_open)


_NOTABLE_S: Final = 2.0
_LOOK_S: Final = 5.0
_SOON_FULL: Final = 4
_SHOWN_ROUNDS: Final = 100
_TOKEN: Final = "status-token"  # noqa: S105  # a file's name
_TOKEN_BYTES: Final = 32
_PROOF_LASTS_S: Final = 60
_DIGITS: Final = 12

# --- the picture ---


class Alarm(Frozen):
    """Something that a person must look at, and its remedy."""

    what: str
    do: str


class PeerStatus(Frozen):
    """The times are since 1970 and in seconds; None while the peer was not heard of since this server's start."""

    name: str
    seen_at_s: float | None
    ahead_s: float | None
    session_open: bool


class KeptFiles(Frozen):
    """The number of files of a kind, and their bytes."""

    kind: str
    count: int
    size_bytes: int


class StorageStatus(Frozen):
    """Bytes on this server's disk; the database's kind without its address, which can hold a password."""

    free_bytes: int
    reserve_bytes: int
    database: str
    database_bytes: int
    files: tuple[KeptFiles, ...]


class RefusalCount(Frozen):
    """Requests refused with this code since the server's start."""

    code: str
    count: int
    fix: str
    alarm: bool


class SiteStatus(Frozen):
    """A site in a study: since when it is ready, its last contribution, and what is awaited of it since when.

    ``awaited`` is ``ready`` or ``contribution``, or empty; the times are since 1970, None where nobody wrote them down.
    """

    name: str
    asks: bool
    ready: bool
    ready_since_s: float | None
    listed: bool
    contributed: bool
    last_round: int | None
    awaited: str
    awaited_since_s: float | None


class Attempt(Frozen):
    """An attempt of a round; ``seconds`` until its end, or until now."""

    number: int
    attempt: int
    state: str
    over: bool
    began_at_s: float | None
    seconds: float | None
    contributors: tuple[str, ...]


class StudyStatus(Frozen):
    """``round``, ``attempt`` and ``round_state`` are the last attempt's, if any. ``sites`` and ``attempts``, the newest
    first, are those of a study under way or asked for by name.
    """

    name: str
    digest: str
    state: str
    ended: bool
    reason: str
    parameters: int
    rounds: int
    ready: tuple[str, ...]
    round: int | None
    attempt: int | None
    round_state: str | None
    contributed: int
    created_at_s: float | None
    closes_at_s: float | None = None
    sites: tuple[SiteStatus, ...] = ()
    attempts: tuple[Attempt, ...] = ()

    @property
    def missing(self) -> tuple[SiteStatus, ...]:
        return tuple(site for site in self.sites if site.awaited)


class Status(Frozen):
    """Everything about one server; ``peer`` and ``storage`` are None where it does not run."""

    server: str
    side: Side
    ready: bool
    alarms: tuple[Alarm, ...]
    roster_digest: str
    peer: PeerStatus | None = None
    storage: StorageStatus | None = None
    certificate_ends_s: float | None = None
    refusals: tuple[RefusalCount, ...] = ()
    last_refused: tuple[Refused, ...] = ()
    studies: tuple[StudyStatus, ...]


async def status_of(app: FastAPI, readiness: Readiness, study: str | None = None) -> Status:
    """The running server; what looks through whole tables or all files runs beside its event loop.

    ``study``: this one alone, with its newest 100 attempts. Raises: UnknownStudy
    """
    server: Server = app.state.server
    missing = await readiness.look(_LOOK_S)
    studies = list[StudyStatus]()
    for record, rounds in _chosen(server.store, study):
        last = await asyncio.to_thread(server.store.last_contributed, record.digest) if rounds else {}
        studies.append(_study(server.store, record, server.chain, server.clock(), rounds, last))
        await asyncio.sleep(0)
    peer, storage, counts = _peer(app, server), await asyncio.to_thread(_storage, server), _refusals(server)
    certificate = server.certificate
    return Status(
        server=server.name,
        side=server.side,
        ready=missing is None,
        alarms=tuple(_alarms(missing, readiness.remarks(), peer, storage, counts)),
        roster_digest=server.chain.head_digest,
        peer=peer,
        storage=storage,
        certificate_ends_s=None if certificate is None else certificate.expires_s,
        refusals=counts,
        last_refused=server.recent.refused,
        studies=tuple(studies),
    )


def status_of_stopped(settings: ServerSettings, now_s: float, study: str | None = None) -> Status:
    """Read the status of a server that does not run from its database; nothing is written.

    Raises: ConfigurationError, when there is neither database nor data_dir; UnknownStudy
    """
    chain, keys, _ = load_identity(settings)
    studies: tuple[StudyStatus, ...] = ()
    if database_exists(settings.database):
        with closing(SqlStore(settings.database, lambda _: None)) as store:
            studies = tuple(
                _study(store, record, chain, now_s, rounds, store.last_contributed(record.digest))
                for record, rounds in _chosen(store, study)
            )
    else:
        require_begun("data_dir", settings.data_dir, "'moiety server run'")
    stopped = Alarm(what=f"no server runs on {settings.data_dir}", do="start it with 'moiety server run'")
    return Status(
        server=keys.name,
        side=settings.side,
        ready=False,
        alarms=(stopped,),
        roster_digest=chain.head_digest,
        studies=studies,
    )


# --- who may see it ---


def make_token(data_dir: Path) -> None:
    """The first time, or again where a crash left an empty file; several processes of one server share it."""
    path = data_dir / _TOKEN
    with one_at_a_time(data_dir):
        if path.exists() and path.stat().st_size == 0:
            path.unlink()
        if not path.exists():
            write_new((path, secrets.token_hex(_TOKEN_BYTES), 0o600))


def read_token(data_dir: Path) -> str:
    """Raises: ConfigurationError, where it is missing or others may read it"""
    return read_secret(data_dir / _TOKEN)


def proof(token: str, at_s: int) -> str:
    """Prove to the server that one can read the token: another program on its port learns nothing to keep."""
    made = hmac.digest(token.encode(), f"moiety server status {at_s}".encode(), "sha256").hex()
    return f"{at_s}.{made}"


def is_proof(data_dir: Path, given: str, now_s: float) -> bool:
    """Return whether the caller could read the token, within the last minute. Raises: ConfigurationError"""
    token, at_s = read_token(data_dir), given.partition(".")[0]
    if len(token) != 2 * _TOKEN_BYTES or not at_s.isascii() or not at_s.isdecimal() or len(at_s) > _DIGITS:
        return False
    expected = proof(token, int(at_s))
    return abs(now_s - int(at_s)) <= _PROOF_LASTS_S and hmac.compare_digest(given.encode(), expected.encode())


# --- its parts ---


def _peer(app: FastAPI, server: Server) -> PeerStatus:
    seen = server.recent.peer
    session_open = server.drives and _session_open(app)
    return PeerStatus(name=server.peer.name, seen_at_s=seen.at_s, ahead_s=seen.ahead_s, session_open=session_open)


def _storage(server: Server) -> StorageStatus:
    kept = []
    for kind, names in server.store.kept().items():
        sizes = [path.stat().st_size for path in map(server.files.path, names) if path.exists()]
        kept.append(KeptFiles(kind=kind.value, count=len(names), size_bytes=sum(sizes)))
    return StorageStatus(
        free_bytes=server.files.free_bytes(),
        reserve_bytes=server.settings.limits.disk_reserve_bytes,
        database=server.settings.database.partition(":")[0],
        database_bytes=server.store.size_bytes(),
        files=tuple(kept),
    )


def _refusals(server: Server) -> tuple[RefusalCount, ...]:
    """Counts since the start, alarms first."""
    value = server.metrics.registry.get_sample_value
    counted = {code: int(value("moiety_refusals_total", {"code": code.value}) or 0) for code in ErrorCode}
    rows = [
        RefusalCount(code=code.value, count=count, fix=FIXES[code], alarm=code in ALARMS)
        for code, count in counted.items()
        if count
    ]
    return tuple(sorted(rows, key=lambda row: (not row.alarm, -row.count)))


def _alarms(
    missing: MoietyError | None,
    remarks: Mapping[str, str],
    peer: PeerStatus,
    storage: StorageStatus,
    counts: tuple[RefusalCount, ...],
) -> Iterator[Alarm]:
    if missing is not None:
        yield Alarm(what=f"not ready: {missing.detail}", do=FIXES[missing.code])
    for remark in remarks.values():
        yield Alarm(what=f"the certificate {remark}", do="a renewed one is taken up within a minute, without a restart")
    if storage.reserve_bytes < storage.free_bytes < _SOON_FULL * storage.reserve_bytes:
        yield Alarm(what="the disk is soon full", do=FIXES[ErrorCode.STORAGE_FULL])
    ahead = peer.ahead_s or 0.0
    if not -MAX_AGE_S < ahead < MAX_SKEW_S:
        yield Alarm(what=_clock(ahead), do="set the clock that is wrong by NTP: requests are refused as they are now")
    elif abs(ahead) > _NOTABLE_S:
        yield Alarm(what=_clock(ahead), do="let NTP set both clocks, before they are too far apart")
    for row in counts:
        if row.alarm:
            yield Alarm(what=f"{row.count} times {row.code} since the start", do=row.fix)


def _clock(ahead_s: float) -> str:
    return f"this clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the other server's"


def _chosen(store: SqlStore, study: str | None) -> list[tuple[StudyRecord, int]]:
    """All studies by name, or one, each with how many attempts are shown; 0: in short. Raises: UnknownStudy"""
    if study is None:
        return [(one, 0 if one.state.ended else 1) for one in sorted(store.studies(), key=lambda one: one.name)]
    record = store.study_named(study)
    if record is None:
        raise UnknownStudy(f"this server has no study {study!r}: 'moiety server status' lists them")
    return [(record, _SHOWN_ROUNDS)]


def _study(
    store: SqlStore, record: StudyRecord, chain: RosterChain, now_s: float, rounds: int, last: Mapping[str, int]
) -> StudyStatus:
    """With the newest ``rounds`` attempts and the sites, of which ``last`` has the last rounds; 0: in short."""
    current = store.current_round(record.digest)
    attempts = store.rounds_seen(record.digest, rounds) if rounds else []
    newest = attempts[0] if attempts else None
    key = None if current is None else current.key
    return StudyStatus(
        name=record.name,
        digest=record.digest,
        state=record.state.value,
        ended=record.state.ended,
        reason=printable(record.reason),
        parameters=record.study.parameters.dimension,
        rounds=record.study.rounds,
        ready=store.ready_sites(record.digest),
        round=None if key is None else key.round,
        attempt=None if key is None else key.attempt,
        round_state=None if current is None else current.state.value,
        contributed=0 if key is None else store.contributions_held(key),
        created_at_s=store.created_at_s(record.digest),
        closes_at_s=None if newest is None or newest.over else newest.closes_at_s,
        sites=tuple(_sites(store, record, current, newest, chain.head, last)) if rounds else (),
        attempts=tuple(_attempt(store, record.digest, one, now_s) for one in attempts),
    )


def _sites(
    store: SqlStore,
    record: StudyRecord,
    current: RoundRecord | None,
    newest: SeenRound | None,
    roster: Roster,
    last: Mapping[str, int],
) -> Iterator[SiteStatus]:
    ready = store.ready_since(record.digest)
    created = store.created_at_s(record.digest)
    under_way = current is not None and current.state in (RoundState.ANNOUNCED, RoundState.COLLECTING)
    listed = frozenset(current.announcement.message.listed) if current is not None else frozenset[str]()
    there = frozenset(store.contributors_of(current.key)) if current is not None else frozenset[str]()
    began = None if newest is None else newest.began_at_s
    for name in (roster.requester, *(party.name for party in roster.contributors)):
        asks, awaited, since = name == roster.requester, "", None
        if record.state.ended:
            pass
        elif under_way and (asks or name in listed) and name not in there:
            awaited, since = "contribution", began
        elif not asks and name not in ready:
            awaited, since = "ready", created
        yield SiteStatus(
            name=name,
            asks=asks,
            ready=asks or name in ready,
            ready_since_s=ready.get(name),
            listed=asks or name in listed,
            contributed=name in there,
            last_round=last.get(name),
            awaited=awaited,
            awaited_since_s=since,
        )


def _attempt(store: SqlStore, digest: str, one: SeenRound, now_s: float) -> Attempt:
    until = one.state_since_s if one.over else now_s
    return Attempt(
        number=one.round,
        attempt=one.attempt,
        state=one.state.value,
        over=one.over,
        began_at_s=one.began_at_s,
        seconds=None if one.began_at_s is None or until is None else until - one.began_at_s,
        contributors=store.contributors_of(one.key(digest)),
    )
