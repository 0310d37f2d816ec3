"""Counts the bytes of bodies, by route, in both directions."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from servers.monitoring.metrics import Metrics

_PEER_PREFIX: Final = "/v1/peer/"


class CountTraffic:
    """ASGI middleware; routes of the peer are counted apart from those of the agents."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        taken, given = 0, 0

        async def counted_receive() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal given
            given += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counted_receive, counted_send)
        finally:
            counter = self._metrics.peer_bytes if scope["path"].startswith(_PEER_PREFIX) else self._metrics.bytes
            kind = getattr(scope.get("route"), "name", "unknown")
            counter.labels("in", kind).inc(taken)
            counter.labels("out", kind).inc(given)
