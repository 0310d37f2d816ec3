"""What an operator may see of the studies at its server: names, states, rounds and who took part, from its database.

Beside the server that runs: nothing is written. No share, distance, weight or aggregate is in what is shown; a server
has none.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from protocol.printable import printable
from servers.settings import ServerSettings
from servers.store.database import database_exists
from servers.store.interface import RoundRecord, Store, StudyRecord
from servers.store.sql import SqlStore


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


def studies_at(settings: ServerSettings) -> tuple[SeenStudy, ...]:
    """Every study of this server, by name; nothing before its first start."""
    if not database_exists(settings.database):
        return ()
    store = SqlStore(settings.database, lambda _: None)
    try:
        return tuple(_seen(store, record) for record in sorted(store.studies(), key=lambda one: one.name))
    finally:
        store.close()


def _seen(store: Store, record: StudyRecord) -> SeenStudy:
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
        "contributed": len(store.contributions(key)),
    }
