"""What every start of a server would make anew, and is the same each time: routes, statements, keys that were read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

from fastapi import APIRouter, FastAPI
from sqlalchemy import Engine, create_engine
from sqlalchemy.util import LRUCache
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp

from protocol.wire.chain.chain import RosterChain
from protocol.wire.keyfile import PartyKeys
from servers import server
from servers.http import front
from servers.http.direct import Direct
from servers.identity import load_identity
from servers.settings import ServerSettings
from servers.store import database

_Identity = tuple[RosterChain, PartyKeys, RosterChain | None]
_STATEMENTS: Final = 1000


@dataclass
class MadeOnce:
    """Of one process. Keys and rosters are checked again once a byte of their files has changed."""

    _routes: list[Any] = field(default_factory=list)
    _directs: list[Direct] = field(default_factory=list)
    _dialects: list[Any] = field(default_factory=list)
    _compiled: LRUCache[Any, Any] = field(default_factory=lambda: LRUCache(_STATEMENTS))
    _identities: dict[tuple[object, ...], _Identity] = field(default_factory=dict)

    def inside(self, app: FastAPI) -> ASGIApp:
        """What an application does with a request once its envelope is open."""
        self._routes = self._routes or app.router.routes
        app.router.routes = self._routes
        opened: ASGIApp = front._Enclosed(app, self._directs[0])
        handler: Any = app.exception_handlers[Exception]
        return ServerErrorMiddleware(opened, handler=handler)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """A server that starts takes keys, roster and written statements from here."""
        with (
            mock.patch.object(server, "load_identity", self._identity),
            mock.patch.object(database, "create_engine", self._engine),
            mock.patch.object(front, "Direct", self._direct),
        ):
            yield

    def _direct(self, routers: Sequence[APIRouter]) -> Direct:
        self._directs = self._directs or [Direct(routers)]
        return self._directs[0]

    def _engine(self, url: str) -> Engine:
        engine = create_engine(url)
        if not self._dialects:
            engine.connect().close()  # the first connection completes what the dialect knows
            engine.dispose()
            self._dialects.append(engine.dialect)
        engine.dialect = self._dialects[0]
        engine._compiled_cache = self._compiled
        return engine

    def _identity(self, settings: ServerSettings) -> _Identity:
        files = (settings.keys, settings.roster, *sorted(settings.data_dir.glob("*.toml")))
        seen = (settings.data_dir, *((file, file.read_bytes()) for file in files))
        if seen not in self._identities:
            self._identities[seen] = load_identity(settings)
        return self._identities[seen]


MADE_ONCE: Final = MadeOnce()
