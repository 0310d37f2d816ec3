"""Duties of one process of a server: drivers, answers, silent requesters, clean-up, certificates, rosters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import httpx
from fastapi import FastAPI

from host import log
from protocol.errors import MoietyError
from protocol.messages.control import RoundState
from protocol.rounds.states import STUDY_TRANSITIONS, StudyEvent, study_step
from protocol.sharing import Side
from servers.background.deletion import keep_to_retention
from servers.correlations.oblivious_transfer import Transfer
from servers.correlations.pool import CorrelationPool
from servers.correlations.sender import OtSessions
from servers.peer_client import PeerClient
from servers.rounds.endings import Endings
from servers.rounds.side_a import Driver
from servers.rounds.side_b import Answering
from servers.rounds.sketches import Sketches
from servers.server import Server
from servers.store.records import StudyRecord

_LOOKED_AT_EVERY_S: Final = 60.0
_OVER: Final = (RoundState.RELEASED, RoundState.RANKED, RoundState.CLOSED, RoundState.SKIPPED)
_studies_log = log.logger("studies")


async def watch_requesters(server: Server) -> None:
    """Until it is cancelled."""
    while True:
        try:
            pause_silent(server)
        except MoietyError as later:
            _studies_log.warning("silence_not_seen", code=later.code, detail=later.detail)
        except Exception:
            _studies_log.exception("silence_not_seen")
        await asyncio.sleep(min(_LOOKED_AT_EVERY_S, server.settings.limits.requester_silent_s))


def pause_silent(server: Server) -> list[str]:
    """Pause open studies whose last round has been over for ``requester_silent_s``. -> their names

    Nothing but the requester's next announcement is waited for then. In one that has begun no round its requester may
    wait for sites for as long as it said, and asks for news of them: it is paused when no request came of it for so
    long. Raises: Unavailable
    """
    if server.store.beside is not None:  # its requests come to other processes
        heard_s = server.store.last_heard_of_s(server.key_id_of(server.roster.requester))
        server.recent.requester_at_s = max(server.recent.requester_at_s, heard_s or 0.0)
    silent = [study for study in server.store.studies() if _is_silent(server, study)]
    return [study.name for study in silent if _paused(server, study)]


def _paused(server: Server, study: StudyRecord) -> bool:
    with server.store.alone(study.digest):
        if not _is_silent(server, server.store.study(study.digest)):
            return False
        server.store.change_study(
            study.digest,
            lambda s: replace(s, state=study_step(s.state, StudyEvent.REQUESTER_STAYED_AWAY), absent_in_a_row=0),
        )
    _studies_log.warning("requester_silent", study=study.name, for_s=server.settings.limits.requester_silent_s)
    return True


def _is_silent(server: Server, study: StudyRecord) -> bool:
    if (study.state, StudyEvent.REQUESTER_STAYED_AWAY) not in STUDY_TRANSITIONS:
        return False
    newest = next(iter(server.store.rounds_seen(study.digest, 1)), None)
    if newest is None:
        since_s: float | None = server.recent.requester_at_s
    else:
        since_s = newest.state_since_s if newest.state in _OVER else None
    return since_s is not None and server.clock() - since_s > server.settings.limits.requester_silent_s


NONCES_KEPT_S: Final = 600
_DATABASE_LOOKED_AT_EVERY_S: Final = 1.0
_log = log.logger("http")


@dataclass(eq=False)
class Duties:
    """Begun once, by the process that drives; ``app`` then holds what its routes and its status show of them."""

    app: FastAPI
    server: Server
    to_peer: httpx.AsyncBaseTransport | None
    transfer: Transfer
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _client: PeerClient | None = None

    def begin(self) -> None:
        server, state = self.server, self.app.state
        sketches = Sketches(server)
        keeping = (_purge, keep_to_retention, watch_requesters, _watch_database)
        self._tasks += [asyncio.create_task(one(server)) for one in keeping]
        if server.side is Side.B:
            state.answering = Answering(server, sketches, OtSessions(server, self.transfer))
            return
        state.peer = self._client = PeerClient(server, self.to_peer)
        state.pool = CorrelationPool(server, self._client, self.transfer)
        driver = Driver(server, self._client, state.pool, sketches, Endings(server, self._client))
        self._tasks.append(asyncio.create_task(driver.run()))

    async def end(self) -> None:
        """Nothing is under way any more; the other server is not called. Whatever a task ended with, all of it ends."""
        tasks, self._tasks = self._tasks, []
        client, self._client = self._client, None
        await end_all(tasks)
        if client is not None:
            await client.close()


async def end_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for the last of them; one that had failed before keeps none of the others from ending."""
    for task in tasks:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(found, Exception):
            _log.error("task_failed", exc_info=found)


async def _purge(server: Server) -> None:
    """Nonces older than any acceptable signature are forgotten."""
    while True:
        try:
            server.store.purge_nonces(server.clock() - NONCES_KEPT_S)
        except MoietyError as later:
            _log.warning("nonces_not_purged", code=later.code, detail=later.detail)
        except Exception:
            _log.exception("nonces_not_purged")
        await asyncio.sleep(NONCES_KEPT_S / 10)


async def _watch_database(server: Server) -> None:
    """An older one can take the place of the one that is served from; of several processes each looks by itself."""
    while server.store.beside is None:
        await asyncio.sleep(_DATABASE_LOOKED_AT_EVERY_S)
        try:
            server.history.count()
        except MoietyError:  # what went back is noted, and what does not answer is said to whoever asks
            continue
        except Exception:
            _log.exception("database_not_watched")
