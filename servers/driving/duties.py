"""Duties of one process of a server: rounds are taken further, the other server is called or answered, time passes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import httpx
from fastapi import FastAPI

from host import log
from protocol.errors import MoietyError
from protocol.sharing import Side
from servers.correlations.pool import CorrelationPool
from servers.correlations.sender import OtSessions
from servers.correlations.transfer import Transfer
from servers.http.peer_client import PeerClient
from servers.retention.keeping import keep_to_retention
from servers.retention.silence import watch_requesters
from servers.rounds.end_round import Endings
from servers.rounds.side_a import Driver
from servers.rounds.side_b import Answering
from servers.rounds.sketches import Sketches
from servers.server import Server

NONCES_KEPT_S: Final = 600
_DATABASE_LOOKED_AT_EVERY_S: Final = 1.0
_log = log.logger("http")


@dataclass(eq=False)
class Duties:
    """Begun once, by the process that drives; ``app`` then holds what its routes and its page show of them."""

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
