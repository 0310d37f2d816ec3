"""Both real server applications in one process: nothing but the sockets is missing, and every message is kept."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from structlog.testing import capture_logs

from harness.engine.parties import Parties
from protocol.channel import session
from protocol.channel.envelope import ANSWER_TYPE, LENGTH_BYTES, Correspondence, open_answer, open_request
from protocol.messages.paths import PEER_SEALED, SEALED
from protocol.sharing import Side
from servers.app import create_app
from servers.server import Server, open_server
from servers.settings import load_settings
from tests.kit.databases import new_database
from tests.kit.processes import Federation


@contextmanager
def opened_server(config: Path, clock: Callable[[], float] = time.time) -> Iterator[Server]:
    """A server without ports or tasks; where it has no database yet, its schema is not made once more."""
    settings = load_settings(config)
    if not settings.data_dir.exists():
        settings.data_dir.mkdir(mode=0o700)
        new_database(settings.data_dir / "server.db")
    server = open_server(settings, clock)
    try:
        yield server
    finally:
        server.store.close()
        server.ckks.close()


_POLLED = ("/view", "/sessions/", "/history", "/v1/session")
"""Asked for as often as time allows, or fresh secrets; what else the answers say is in the database, which is compared
as a whole."""
_NOT_COMPARED = ("nonces", "alembic_version", "history", "histories")
"""Nonces are fresh random text with a time, drawn by the callers and related to nothing; histories count changes, name
a run by fresh random text and hold nothing of any study."""


@dataclass
class Messages:
    """Messages to or by one server: method, path, request body, answer."""

    said: set[tuple[str, str, bytes, int, bytes]] = field(default_factory=set)


class Wire(httpx.AsyncBaseTransport):
    """Carries a request to the right application and keeps what it holds for everybody who can open it."""

    def __init__(self, apps: dict[str, Any], seen_by: dict[str, list[Messages]], parties: Parties) -> None:
        self._apps = apps
        self._seen_by = seen_by
        self._keys = {keys.key_id: keys for keys in parties.keys}
        self._said: dict[tuple[bytes, int], bytes] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        host = f"{request.url.scheme}://{request.url.netloc.decode()}"
        inner = await httpx.ASGITransport(app=self._apps[host]).handle_async_request(_copy(request, body))
        answer = await inner.aread()
        opened = self._opened(request, body, inner, answer)
        if not any(part in opened[1] for part in _POLLED):
            for messages in self._seen_by[host]:
                messages.said.add(opened)
        return httpx.Response(inner.status_code, headers=inner.headers, content=answer)

    def _opened(
        self, request: httpx.Request, body: bytes, response: httpx.Response, answer: bytes
    ) -> tuple[str, str, bytes, int, bytes]:
        """Out of the envelopes and sessions, whose nonces and seals are new every time."""
        if response.headers.get("content-type") == session.SESSION_TYPE:
            return self._of_session(request, body, answer)
        if request.url.path not in (SEALED, PEER_SEALED) or "signature" not in response.headers:
            return request.method, request.url.path, body, response.status_code, answer
        stated = request.headers["signature-input"]
        caller, nonce = (re.search(f'{name}="([^"]+)"', stated) for name in ("keyid", "nonce"))
        server = re.search('keyid="([^"]+)"', response.headers["signature-input"])
        assert caller, stated
        assert nonce, stated
        assert server, response.headers
        between = Correspondence(caller[1], server[1], nonce[1])
        length = LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "big")
        asked, first = open_request(body[LENGTH_BYTES:length], self._keys[server[1]].sealing, between)
        status, said = response.status_code, answer
        if response.headers["content-type"] == ANSWER_TYPE:
            status, said = open_answer(answer, self._keys[caller[1]].sealing, between)
        return asked.method, asked.target, first + body[length:], status, said

    def _of_session(self, request: httpx.Request, body: bytes, answer: bytes) -> tuple[str, str, bytes, int, bytes]:
        tagged = body[: session.HEAD_BYTES]
        head = session.read_head(tagged)
        server: Server = self._apps[f"{request.url.scheme}://{request.url.netloc.decode()}"].state.server
        keys, end = server.sessions._of[head.session].keys, session.HEAD_BYTES + head.sealed_bytes
        asked, first, back = session.open_request(keys, tagged, body[session.HEAD_BYTES : end])
        length = LENGTH_BYTES + int.from_bytes(answer[:LENGTH_BYTES], "big")
        earlier = self._said.get((head.session, head.counter - back), b"") if back else b""
        said = session.open_answer(keys, head, answer[LENGTH_BYTES:length], earlier=earlier)
        self._said[head.session, head.counter] = said.body
        return asked.method, asked.target, first + body[end:], said.status, said.body + answer[length:]


def _copy(request: httpx.Request, body: bytes) -> httpx.Request:
    """The same request with its body at hand; a chunked one goes on stating no length."""
    copy = httpx.Request(request.method, request.url, headers=request.headers, content=body)
    if "transfer-encoding" in request.headers:
        del copy.headers["content-length"]
    return copy


class Bridge(httpx.BaseTransport):
    """A synchronous client's way into the event loop."""

    def __init__(self, wire: Wire, loop: asyncio.AbstractEventLoop) -> None:
        self._wire = wire
        self._loop = loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        copy = _copy(request, request.content)
        done = asyncio.run_coroutine_threadsafe(self._wire.handle_async_request(copy), self._loop)
        answer = done.result(60)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


@dataclass
class RunningApps:
    """Two applications with everything that each of them saw."""

    bridge: Bridge
    servers: dict[Side, Server]
    messages: dict[Side, Messages]
    logs: list[Any]


@contextmanager
def running_apps(federation: Federation, clock: Callable[[], float]) -> Iterator[RunningApps]:
    """Both applications, from the settings that real processes would read."""
    messages = {side: Messages() for side in Side}
    by_url: dict[str, Any] = {}
    peers = Wire(by_url, {federation.url(side): list(messages.values()) for side in Side}, federation.parties)
    agents = Wire(by_url, {federation.url(side): [messages[side]] for side in Side}, federation.parties)
    apps = {}
    for side in Side:
        settings = load_settings(federation.servers[side].config)
        apps[side] = by_url[federation.url(side)] = create_app(settings, clock=clock, to_peer=peers)
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()

    async def live() -> None:
        async with AsyncExitStack() as stack:
            for side in (Side.B, Side.A):
                await stack.enter_async_context(apps[side].router.lifespan_context(apps[side]))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(live(),))
    with capture_logs() as logs:
        thread.start()
        assert ready.wait(60)
        try:
            servers = {side: apps[side].state.server for side in Side}
            yield RunningApps(Bridge(agents, loop), servers, messages, logs)
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(30)
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


def durable(federation: Federation, side: Side) -> dict[str, Any]:
    """Every row of every table and every file of one server."""
    data = federation.folder / federation.roster.operator(side).name / "data"
    found: dict[str, Any] = {path.name: path.read_bytes() for path in sorted((data / "shares").iterdir())}
    connection = sqlite3.connect(data / "server.db")
    try:
        names = [row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")]
        for name in names:
            if name not in _NOT_COMPARED:
                found[f"table {name}"] = sorted(connection.execute(f'select * from "{name}"'), key=repr)
    finally:
        connection.close()
    return found
