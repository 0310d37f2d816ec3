"""Tell whether this server could serve a round now; looked at seldom, whoever asks how often."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import FastAPI

from protocol.errors import MoietyError, PeerUnreachable, Unavailable
from protocol.sharing import Side
from servers.server import Server

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

    @property
    def found(self) -> MoietyError | None:
        """The deficiencies that the last look found; empty before the first look."""
        return self._found

    def look_soon(self) -> None:
        """Without waiting for what is found: a peer that does not answer must not keep whoever asks for metrics."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_if_old())

    async def _look_if_old(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() >= self._until_s:
                self._found = await self._look()
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

    async def _look(self) -> MoietyError | None:
        try:
            await self._require_now()
        except MoietyError as found:
            return found
        return None

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
            if not state.pool.session_open:
                raise Unavailable("no OT session is open with the peer yet; one is opened when a study needs it")
        elif not state.answering.sessions.session_open:
            raise PeerUnreachable("side A has not opened an OT session here yet")
