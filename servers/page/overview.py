"""What an operator may see of the studies at its server: names, states, rounds and who took part, from its database.

Nothing is written; the command line looks beside the server that runs. No share, distance, weight or aggregate is in
what is shown; a server has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict

from host.settings import require_begun
from protocol.printable import printable
from protocol.wire.messages import RoundState
from servers.settings import ServerSettings
from servers.store.database import database_exists
from servers.store.for_people import SeenRound
from servers.store.interface import Store
from servers.store.sql import SqlStore
from servers.store.study_records import RoundRecord, StudyRecord

_OVER: Final = frozenset(
    {RoundState.RELEASED, RoundState.RANKED, RoundState.CLOSED, RoundState.SKIPPED, RoundState.BURNT}
)


class SeenStudy(BaseModel):
    """``ready`` are the contributors that said so; ``round`` and ``round_state`` are the last attempt's, if any."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    digest: str
    state: str
    reason: str
    parameters: int
    rounds: int
    ready: tuple[str, ...]
    round: int | None = None
    attempt: int | None = None
    round_state: str | None = None
    contributed: int = 0


@dataclass(frozen=True)
class SeenSite:
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


@dataclass(frozen=True)
class SeenAttempt:
    """An attempt of a round; ``seconds`` until its end, or until now."""

    number: int
    attempt: int
    state: str
    over: bool
    began_at_s: float | None
    seconds: float | None
    contributors: tuple[str, ...]


@dataclass(frozen=True)
class StudyInFull:
    """A study with its sites and its newest rounds."""

    seen: SeenStudy
    created_at_s: float | None
    closes_at_s: float | None
    sites: tuple[SeenSite, ...]
    attempts: tuple[SeenAttempt, ...]

    @property
    def missing(self) -> tuple[SeenSite, ...]:
        return tuple(site for site in self.sites if site.awaited)


def studies_at(settings: ServerSettings) -> tuple[SeenStudy, ...]:
    """Every study of this server, by name. Raises: ConfigurationError, when there is neither database nor data_dir"""
    if not database_exists(settings.database):
        require_begun("data_dir", settings.data_dir, "'moiety server run'")
        return ()
    store = SqlStore(settings.database, lambda _: None)
    try:
        return tuple(seen_study(store, record) for record in sorted(store.studies(), key=lambda one: one.name))
    finally:
        store.close()


def seen_study(store: Store, record: StudyRecord) -> SeenStudy:
    """One study in short."""
    current = store.current_round(record.digest)
    return SeenStudy(
        name=record.name,
        digest=record.digest,
        state=record.state.value,
        reason=printable(record.reason),
        parameters=record.study.parameters.dimension,
        rounds=record.study.rounds,
        ready=store.ready_sites(record.digest),
        **({} if current is None else _round(store, current)),
    )


def _round(store: Store, current: RoundRecord) -> dict[str, object]:
    key = current.key
    return {
        "round": key.round,
        "attempt": key.attempt,
        "round_state": current.state.value,
        "contributed": store.contributions_held(key),
    }


def study_in_full(store: Store, record: StudyRecord, sites: Sequence[str], now_s: float, rounds: int) -> StudyInFull:
    """``sites`` are the roster's, the requester first; of the rounds the newest ``rounds`` attempts."""
    current = store.current_round(record.digest)
    attempts = store.rounds_seen(record.digest, rounds)
    newest = attempts[0] if attempts else None
    return StudyInFull(
        seen=seen_study(store, record),
        created_at_s=store.created_at_s(record.digest),
        closes_at_s=None if newest is None or newest.state in _OVER else newest.closes_at_s,
        sites=_sites(store, record, current, newest, sites),
        attempts=tuple(_attempt(store, record.digest, one, now_s) for one in attempts),
    )


def _sites(
    store: Store, record: StudyRecord, current: RoundRecord | None, newest: SeenRound | None, names: Sequence[str]
) -> tuple[SeenSite, ...]:
    ready, last = store.ready_since(record.digest), store.last_contributed(record.digest)
    created = store.created_at_s(record.digest)
    under_way = current is not None and current.state in (RoundState.ANNOUNCED, RoundState.COLLECTING)
    listed = frozenset(current.announcement.message.listed) if current is not None else frozenset[str]()
    there = frozenset(store.contributors_of(current.key)) if current is not None else frozenset[str]()
    began = None if newest is None else newest.began_at_s
    found = []
    for place, name in enumerate(names):
        asks, awaited, since = place == 0, "", None
        if record.state.ended:
            pass
        elif under_way and (asks or name in listed) and name not in there:
            awaited, since = "contribution", began
        elif not asks and name not in ready:
            awaited, since = "ready", created
        found.append(
            SeenSite(
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
        )
    return tuple(found)


def _attempt(store: Store, digest: str, one: SeenRound, now_s: float) -> SeenAttempt:
    over = one.state in _OVER
    until = one.state_since_s if over else now_s
    return SeenAttempt(
        number=one.round,
        attempt=one.attempt,
        state=one.state.value,
        over=over,
        began_at_s=one.began_at_s,
        seconds=None if one.began_at_s is None or until is None else until - one.began_at_s,
        contributors=store.contributors_of(one.key(digest)),
    )
