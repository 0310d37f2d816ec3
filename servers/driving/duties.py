"""What one process of a server does: rounds are taken further, the other server is called or answered, time passes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
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
        keeping = (_purge, keep_to_retention, watch_requesters)
        self._tasks += [asyncio.create_task(one(server)) for one in keeping]
        if server.side is Side.B:
            state.answering = Answering(server, sketches, OtSessions(server, self.transfer))
            return
        state.peer = self._client = PeerClient(server, self.to_peer)
        state.pool = CorrelationPool(server, self._client, self.transfer)
        driver = Driver(server, self._client, state.pool, sketches, Endings(server, self._client))
        self._tasks.append(asyncio.create_task(driver.run()))

    async def end(self) -> None:
        """Nothing is under way any more; the other server is not called."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        if self._client is not None:
            await self._client.close()
            self._client = None


async def _purge(server: Server) -> None:
    """Nonces older than any acceptable signature are forgotten."""
    while True:
        try:
            server.store.purge_nonces(server.clock() - NONCES_KEPT_S)
        except MoietyError as later:
            _log.warning("nonces_not_purged", code=later.code, detail=later.detail)
        await asyncio.sleep(NONCES_KEPT_S / 10)
