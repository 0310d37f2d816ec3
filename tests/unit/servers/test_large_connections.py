"""Connections keep the buffers that a large body made them have: beyond a few, they end with an answer that says so."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn

from servers.api import admission
from servers.api.admission import Admission
from servers.api.listener import BoundedServer, listen
from servers.settings import Limits
from tests.unit.servers.test_next_request import _connected

LARGE = bytes(2**21)
ASKED = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


async def counts(scope: Any, receive: Any, send: Any) -> None:
    """Answers with how many bytes came."""
    length, more = 0, True
    while more:
        message = await receive()
        assert isinstance(message["body"], bytes)
        length, more = length + len(message["body"]), message["more_body"]
    body = b"%010d" % length
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
    await send({"type": "http.response.body", "body": body})


async def told_to_close(bodies: list[bytes]) -> list[bool]:
    """Of each connection, all open at once, whether its answer ends it."""
    config = uvicorn.Config(counts, http="httptools", lifespan="off", log_config=None)
    listener = listen("port", "127.0.0.1", 0)
    server = BoundedServer(config, listener, Admission(Limits()), lambda code: None, hears_signals=False)
    serving, found, open_ones = asyncio.create_task(server.serve()), [], []
    for body in bodies:
        reader, writer = await asyncio.open_connection(sock=_connected(listener))
        writer.write(ASKED % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert int(await reader.readexactly(10)) == len(body)
        found.append(b"connection: close" in head.lower())
        open_ones.append(writer)
    for writer in open_ones:
        writer.close()
    server.should_exit = True
    await serving
    return found


def test_beyond_a_few_a_connection_ends_with_its_large_body(monkeypatch: Any) -> None:
    monkeypatch.setattr(admission, "_MOST_GROWN", 2)
    bodies = [LARGE, b"small", LARGE, LARGE, b"small"]
    assert asyncio.run(told_to_close(bodies)) == [False, False, False, True, False]
