"""The next request of a caller that has the whole of an answer is answered, however late the application says so."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn

from servers.api.admission import Admission
from servers.api.listener import BoundedServer, listen
from servers.settings import Limits

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def late(scope: Any, receive: Any, send: Any) -> None:
    """Sends all of its answer, and its last word a while after."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok", "more_body": True})
    await asyncio.sleep(0.1)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def answers(sent: list[bytes]) -> list[bytes]:
    """What one connection reads after each piece that it sends; empty: it was closed."""
    config = uvicorn.Config(
        late, http="httptools", lifespan="off", log_config=None, server_header=False, date_header=False
    )
    listener = listen("port", "127.0.0.1", 0)
    server = BoundedServer(config, listener, Admission(Limits()), lambda code: None, hears_signals=False)
    serving = asyncio.create_task(server.serve())
    found = []
    reader, writer = await asyncio.open_connection(sock=_connected(listener))
    for piece in sent:
        writer.write(piece)
        try:
            found.append(await reader.readexactly(len(ANSWER)))
        except (asyncio.IncompleteReadError, ConnectionError):
            found.append(b"")
            break
    writer.close()
    server.should_exit = True
    await serving
    return found


def _connected(listener: socket.socket) -> socket.socket:
    made = socket.create_connection(listener.getsockname())
    made.setblocking(False)
    return made


async def dated(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The head of an answer that waited until the clock of the server went on."""
    asked, released = asyncio.Event(), asyncio.Event()

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await released.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr("uvicorn.server.formatdate", lambda *_, **__: "now" if asked.is_set() else "then")
    config = uvicorn.Config(waiting, http="httptools", lifespan="off", log_config=None, server_header=False)
    listener = listen("port", "127.0.0.1", 0)
    server = BoundedServer(config, listener, Admission(Limits()), lambda code: None, hears_signals=False)
    serving = asyncio.create_task(server.serve())
    reader, writer = await asyncio.open_connection(sock=_connected(listener))
    writer.write(REQUEST)
    await asked.wait()
    await server.on_tick(0)
    released.set()
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    server.should_exit = True
    await serving
    return head


def test_an_answer_that_waited_has_the_date_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of its request: a long poll's 20 s were taken for a clock that is off by 20 s."""
    assert b"date: now\r\n" in asyncio.run(dated(monkeypatch))


def test_a_request_after_the_last_byte_of_an_answer_is_answered() -> None:
    assert asyncio.run(answers([REQUEST] * 3)) == [ANSWER] * 3


def test_a_pipeline_after_an_answer_is_still_closed() -> None:
    assert asyncio.run(answers([REQUEST, REQUEST * 3])) == [ANSWER, b""]
