"""A server's status for its operator: readiness, alarms with their remedies, peer, disk, refusals, studies.

The running server makes the picture and shows it at ``/status`` of the operator's own port, only to a caller who can
read ``data_dir/status-token``: it names studies and sites, which the metrics on that port do not. No share, digest of
one, distance, weight, mask or key is in it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from host.files import read_secret
from host.folder_lock import one_at_a_time
from host.output_files import write_new
from host.settings import require_begun
from protocol.channel.signing import MAX_AGE_S, MAX_SKEW_S
from protocol.errors import ErrorCode, MoietyError, UnknownStudy
from protocol.messages.control import RoundState
from protocol.roster.chain import RosterChain
from protocol.sharing import Side
from protocol.text import printable
from servers.identity import load_identity
from servers.monitoring.recent import Refused
from servers.readiness import Readiness
from servers.server import Server
from servers.settings import ServerSettings
from servers.store.database import database_exists
from servers.store.for_people import SeenRound
from servers.store.interface import Store
from servers.store.sql import SqlStore
from servers.store.study_records import RoundRecord, StudyRecord

_NOTABLE_S: Final = 2.0
_LOOK_S: Final = 5.0
_SOON_FULL: Final = 4
_SHOWN_ROUNDS: Final = 100
_TOKEN: Final = "status-token"  # noqa: S105  # a file's name
_TOKEN_BYTES: Final = 32
_PROOF_LASTS_S: Final = 60
_DIGITS: Final = 12
_OVER: Final = frozenset(
    {RoundState.RELEASED, RoundState.RANKED, RoundState.CLOSED, RoundState.SKIPPED, RoundState.BURNT}
)

# --- what an operator does about each kind of refusal ---

ALARMS: Final = frozenset(
    {
        ErrorCode.CONSISTENCY_CHECK_FAILED,
        ErrorCode.CORRELATION_REUSED,
        ErrorCode.TRANSCRIPT_MISMATCH,
        ErrorCode.PROTOCOL_VIOLATION,
    }
)
"""The other operator is called at the first one."""
_AT_SITES: Final = "raised at sites, not at servers: report it"
_LATE: Final = "a late or confused site; it catches up by itself"
_CALL: Final = "stop the study, call the other operator, compare logs and versions"
FIXES: Final[dict[ErrorCode, str]] = {
    ErrorCode.CONFIGURATION: "a file, key or setting on this machine: the log says which",
    ErrorCode.UNUSABLE_UPDATE: _AT_SITES,
    ErrorCode.POLICY_REFUSAL: _AT_SITES,
    ErrorCode.LOCAL_OPTIMUM: _AT_SITES,
    ErrorCode.MALFORMED_MESSAGE: "a proxy that changes bodies, or a caller of another kind",
    ErrorCode.UNKNOWN_STUDY: "asked too early or too late; agents ask again",
    ErrorCode.UNKNOWN_PARTY: "a caller that is not in the roster: does it have this federation's?",
    ErrorCode.NOT_LISTED: "a caller that is not in this study or round; nothing to do",
    ErrorCode.UNKNOWN_RESOURCE: "asked too early or too late; agents ask again",
    ErrorCode.OUTPUT_GONE: "a site came too late for a sum and takes the next checkpoint: more outputs_kept_rounds",
    ErrorCode.BAD_SIGNATURE: "a clock that is off by a minute, an old roster, a proxy that changes headers, or "
    "somebody who tries: compare clocks first",
    ErrorCode.BROKEN_SEAL: "sealed for another key or altered on the way: an old roster, or a proxy",
    ErrorCode.COMMITMENT_MISMATCH: "a share altered on the way, or a site that changed its mind: ask the site",
    ErrorCode.WRONG_ROUND: _LATE,
    ErrorCode.ANNOUNCEMENT_MISMATCH: _LATE,
    ErrorCode.ROSTER_UNKNOWN: "nothing while a change of the roster is on its way, else put the newest file in place",
    ErrorCode.ROSTER_REFUSED: "an older roster or a fork: compare 'moiety roster show' with the other parties",
    ErrorCode.CONFLICTING_MESSAGE: "a site restored from an old backup, or two agents with one key: ask the site",
    ErrorCode.TOO_LARGE: "a request beyond the limits of the settings, or of what the study fixes",
    ErrorCode.CONSISTENCY_CHECK_FAILED: "server A's transfers did not add up: a bug, or an attempt to learn masks; "
    + _CALL,
    ErrorCode.CORRELATION_REUSED: _CALL,
    ErrorCode.TRANSCRIPT_MISMATCH: _CALL,
    ErrorCode.SHARE_ALTERED: "a stored share was cut, altered or deleted: the log names server and site; on that "
    "server look at the disk and at who can write to it",
    ErrorCode.AGGREGATE_OUT_OF_BOUNDS: _AT_SITES,
    ErrorCode.SUM_FORGED: _AT_SITES,
    ErrorCode.SUM_ALTERED: _AT_SITES,
    ErrorCode.MODEL_DIVERGED: _AT_SITES,
    ErrorCode.PROTOCOL_VIOLATION: _CALL,
    ErrorCode.UNAVAILABLE: "the network or a restart, tried again; in numbers a flood, or a proxy that is not in "
    "forwarded_by",
    ErrorCode.STORAGE_FULL: "make room on the disk; nothing acknowledged was lost",
    ErrorCode.PEER_UNREACHABLE: "the other server is away or out of reach: call its operator if it lasts",
    ErrorCode.OTHER_VERSION: "a party runs another release: agree on one, the refusal names it",
    ErrorCode.ROLLED_BACK: "an older database was put back: the log says whose; that operator restores the newest one, "
    "or runs 'moiety server restored' (docs/operating.md, \"Backup and restore\")",
    ErrorCode.HISTORY_UNKNOWN: "a server has just started; the servers compare how far they came and go on",
    ErrorCode.SESSION_UNKNOWN: "nothing to do: after a restart every site opens a session anew",
}

# --- the picture ---


class _Seen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Alarm(_Seen):
    """Something that a person must look at, and its remedy."""

    what: str
    do: str


class PeerStatus(_Seen):
    """The times are since 1970 and in seconds; None while the peer was not heard of since this server's start."""

    name: str
    seen_at_s: float | None
    ahead_s: float | None
    session_open: bool


class KeptFiles(_Seen):
    """The number of files of a kind, and their bytes."""

    kind: str
    count: int
    size_bytes: int


class StorageStatus(_Seen):
    """Bytes on this server's disk; the database's kind without its address, which can hold a password."""

    free_bytes: int
    reserve_bytes: int
    database: str
    database_bytes: int
    files: tuple[KeptFiles, ...]


class RefusalCount(_Seen):
    """Requests refused with this code since the server's start."""

    code: str
    count: int
    fix: str
    alarm: bool


class SiteStatus(_Seen):
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


class Attempt(_Seen):
    """An attempt of a round; ``seconds`` until its end, or until now."""

    number: int
    attempt: int
    state: str
    over: bool
    began_at_s: float | None
    seconds: float | None
    contributors: tuple[str, ...]


class StudyStatus(_Seen):
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


class Status(_Seen):
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
    """The running server; on its event loop, as all of its store's calls.

    ``study``: this one alone, with its newest 100 attempts. Raises: UnknownStudy
    """
    server: Server = app.state.server
    missing = await readiness.look(_LOOK_S)
    peer, storage, counts = _peer(app, server), _storage(server), _refusals(server)
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
        studies=_studies(server.store, server.chain, server.clock(), study),
    )


def status_of_stopped(settings: ServerSettings, now_s: float, study: str | None = None) -> Status:
    """Read the status of a server that does not run from its database; nothing is written.

    Raises: ConfigurationError, when there is neither database nor data_dir; UnknownStudy
    """
    chain, keys, _ = load_identity(settings)
    studies: tuple[StudyStatus, ...] = ()
    if database_exists(settings.database):
        store = SqlStore(settings.database, lambda _: None)
        try:
            studies = _studies(store, chain, now_s, study)
        finally:
            store.close()
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
    if not server.drives:
        session_open = False
    elif server.side is Side.A:
        session_open = bool(app.state.pool.session_open)
    else:
        session_open = bool(app.state.answering.sessions.session_open)
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


def _studies(store: Store, chain: RosterChain, now_s: float, study: str | None) -> tuple[StudyStatus, ...]:
    """All by name, those under way with their sites and last attempt; or one in full. Raises: UnknownStudy"""
    roster = chain.head
    names = (roster.requester, *(party.name for party in roster.contributors))
    if study is None:
        records = sorted(store.studies(), key=lambda one: one.name)
        return tuple(_study(store, one, names, now_s, 0 if one.state.ended else 1) for one in records)
    record = store.study_named(study)
    if record is None:
        raise UnknownStudy(f"this server has no study {study!r}: 'moiety server status' lists them")
    return (_study(store, record, names, now_s, _SHOWN_ROUNDS),)


def _study(store: Store, record: StudyRecord, names: tuple[str, ...], now_s: float, rounds: int) -> StudyStatus:
    """With the newest ``rounds`` attempts, and the sites called ``names``, the requester first; 0: in short."""
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
        closes_at_s=None if newest is None or newest.state in _OVER else newest.closes_at_s,
        sites=tuple(_sites(store, record, current, newest, names)) if rounds else (),
        attempts=tuple(_attempt(store, record.digest, one, now_s) for one in attempts),
    )


def _sites(
    store: Store, record: StudyRecord, current: RoundRecord | None, newest: SeenRound | None, names: tuple[str, ...]
) -> Iterator[SiteStatus]:
    ready, last = store.ready_since(record.digest), store.last_contributed(record.digest)
    created = store.created_at_s(record.digest)
    under_way = current is not None and current.state in (RoundState.ANNOUNCED, RoundState.COLLECTING)
    listed = frozenset(current.announcement.message.listed) if current is not None else frozenset[str]()
    there = frozenset(store.contributors_of(current.key)) if current is not None else frozenset[str]()
    began = None if newest is None else newest.began_at_s
    for place, name in enumerate(names):
        asks, awaited, since = place == 0, "", None
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


def _attempt(store: Store, digest: str, one: SeenRound, now_s: float) -> Attempt:
    over = one.state in _OVER
    until = one.state_since_s if over else now_s
    return Attempt(
        number=one.round,
        attempt=one.attempt,
        state=one.state.value,
        over=over,
        began_at_s=one.began_at_s,
        seconds=None if one.began_at_s is None or until is None else until - one.began_at_s,
        contributors=store.contributors_of(one.key(digest)),
    )
