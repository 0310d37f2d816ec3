"""The public application: requests in envelopes come in at the front, everything else through FastAPI's own stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.errors import MoietyError
from servers.http.direct import Direct
from servers.http.envelope import Envelope, is_sealed
from servers.server import Server


class PublicApplication(FastAPI):
    """A FastAPI application whose enclosed requests take a shorter way to the same functions."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (FastAPI's own)
        super().__init__(**options)
        self._front: ASGIApp | None = None

    def take_envelopes(
        self, server: Server, routers: Sequence[APIRouter], counted: Callable[[ASGIApp], ASGIApp]
    ) -> None:
        """Take envelopes from now on, all of them ``counted``; called once routes and handlers of errors are there."""
        inside = Envelope(_Enclosed(self, Direct(routers)), server)
        unexpected: Any = self.exception_handlers.get(Exception)
        self._front = ServerErrorMiddleware(counted(inside), handler=unexpected)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._front is None or not is_sealed(scope):
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        await self._front(scope, receive, send)


class _Enclosed:
    """Takes what an envelope held: directly, or, where that cannot be, as FastAPI would."""

    def __init__(self, app: FastAPI, direct: Direct) -> None:
        self._direct = direct
        self._handlers: dict[Any, Any] = dict(app.exception_handlers)
        others = {kind: handler for kind, handler in self._handlers.items() if kind is not Exception}
        self._otherwise = ExceptionMiddleware(AsyncExitStackMiddleware(app.router), handlers=others)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._direct.find(scope["method"], scope["path"], scope["query_string"].decode("ascii"))
        if found is None:
            await self._otherwise(scope, receive, send)
            return
        scope["route"] = found.route
        request = Request(scope, receive)
        try:
            answer = await found.answer(request)
        except (MoietyError, ClientDisconnect) as error:
            kind = MoietyError if isinstance(error, MoietyError) else ClientDisconnect
            answer = await self._handlers[kind](request, error)
        await answer(scope, receive, send)
