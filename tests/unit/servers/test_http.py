"""Connections, answers and the table of problems."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import uvicorn
from fastapi.responses import StreamingResponse

from protocol import errors
from protocol.channel.sealing import Octets, SealedMessage, seal_message
from protocol.errors import ErrorCode, MoietyError
from protocol.messages import bodies as output
from protocol.messages.control import OutputHeader, ShareKind
from protocol.sharing import Side
from servers.api import admission
from servers.api.admission import Admission
from servers.api.listener import BoundedServer, listen
from servers.api.responses import sealed_answer
from servers.problems import PROBLEMS, error_from, internal_problem, problem_body, status_of
from servers.settings import Limits
from servers.store.files import PIECE_BYTES, FilePieces
from tests.sealed_bodies import KEY, SECRET

# --- large connections ------------------------------------------------------------------------------------------------

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


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def serving(app: Any, **options: Any) -> AsyncIterator[tuple[BoundedServer, Connect]]:
    """A server with this application on a port of its own, and what connects to it."""
    config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, server_header=False, **options)
    listener, writers = listen("port", "127.0.0.1", 0), list[asyncio.StreamWriter]()
    server = BoundedServer(config, listener, Admission(Limits()), lambda code: None, hears_signals=False)
    task = asyncio.create_task(server.serve())

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = socket.create_connection(listener.getsockname())
        made.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=made)
        writers.append(writer)
        return reader, writer

    yield server, connect
    for writer in writers:
        writer.close()
    server.should_exit = True
    await task


async def told_to_close(bodies: list[bytes]) -> list[bool]:
    """Open all connections at once; say of each if its answer ends it."""
    found = []
    async with serving(counts) as (_, connect):
        for body in bodies:
            reader, writer = await connect()
            writer.write(ASKED % len(body) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert int(await reader.readexactly(10)) == len(body)
            found.append(b"connection: close" in head.lower())
    return found


def test_beyond_a_few_a_connection_ends_with_its_large_body(monkeypatch: Any) -> None:
    monkeypatch.setattr(admission, "_MOST_GROWN", 2)
    bodies = [LARGE, b"small", LARGE, LARGE, b"small"]
    assert asyncio.run(told_to_close(bodies)) == [False, False, False, True, False]


# --- next request -----------------------------------------------------------------------------------------------------

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def late(scope: Any, receive: Any, send: Any) -> None:
    """Sends all of its answer, and its last word a while after."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok", "more_body": True})
    await asyncio.sleep(0.1)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def answers(sent: list[bytes]) -> list[bytes]:
    """Answers on one connection after each piece that it sends; empty: it was closed."""
    found = []
    async with serving(late, date_header=False) as (_, connect):
        reader, writer = await connect()
        for piece in sent:
            writer.write(piece)
            try:
                found.append(await reader.readexactly(len(ANSWER)))
            except (asyncio.IncompleteReadError, ConnectionError):
                found.append(b"")
                break
    return found


async def dated(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The head of an answer that waited until the clock of the server went on."""
    asked, released = asyncio.Event(), asyncio.Event()

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await released.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr("uvicorn.server.formatdate", lambda *_, **__: "now" if asked.is_set() else "then")
    async with serving(waiting) as (server, connect):
        reader, writer = await connect()
        writer.write(REQUEST)
        await asked.wait()
        await server.on_tick(0)
        released.set()
        return await reader.readuntil(b"\r\n\r\n")


def test_an_answer_that_waited_has_the_date_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of its request: a long poll's 20 s were taken for a clock that is off by 20 s."""
    assert b"date: now\r\n" in asyncio.run(dated(monkeypatch))


def test_a_request_after_the_last_byte_of_an_answer_is_answered() -> None:
    assert asyncio.run(answers([REQUEST] * 3)) == [ANSWER] * 3


def test_a_pipeline_after_an_answer_is_still_closed() -> None:
    assert asyncio.run(answers([REQUEST, REQUEST * 3])) == [ANSWER, b""]


# --- sealed answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "at_once"), [(1000, True), (10_000, False)])
def test_its_length_is_known_before_it_is_sealed(length: int, at_once: bool) -> None:
    header = OutputHeader(
        release_digest="ab" * 32, side=Side.A, share_kind=ShareKind.VECTOR, recipient="cd" * 16, length=length
    )
    answer = sealed_answer(output.seal_output(header, [bytes(8 * length)], KEY.public, SECRET))
    sent = output.seal_output(header, [bytes(8 * length)], KEY.public, SECRET).whole()
    assert answer.headers["content-length"] == str(len(sent))
    assert isinstance(answer, StreamingResponse) is not at_once
    if at_once:
        assert len(answer.body) == len(sent)


@pytest.mark.parametrize("where", ["in memory", "on disk", "by turns"])
def test_pieces_come_in_order_wherever_they_are(where: str, tmp_path: Path) -> None:
    """Sealed on the event loop while they are in memory, in a thread while they are not; others have their turn."""
    content = np.random.default_rng(1).bytes(5 * PIECE_BYTES + 8)
    (tmp_path / "sum").write_bytes(content)
    pieces, asked, on_the_loop, loops_thread = FilePieces(tmp_path / "sum"), [False], set[bool](), threading.get_ident()

    def at_hand() -> bool:
        asked.append({"in memory": True, "on disk": False, "by turns": not asked[-1]}[where])
        return asked[-1]

    def noted() -> Iterator[memoryview]:
        for piece in pieces:
            on_the_loop.add(threading.get_ident() == loops_thread)
            yield piece

    def message(of: Iterable[Octets]) -> SealedMessage:
        return seal_message(b"header", of, KEY.public, bytes(32), bytes(32))

    made, turns = message(noted()), list[int]()

    async def sent() -> bytes:
        async def others() -> None:
            while True:
                turns.append(1)
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        answer = sealed_answer(made, at_hand)
        assert isinstance(answer, StreamingResponse)
        body = b"".join([bytes(cast("bytes", piece)) async for piece in answer.body_iterator])
        beside.cancel()
        return body

    body = asyncio.run(sent())
    assert body[len(made.head) :] == message([content]).whole()[len(made.head) :]
    assert sum(turns) >= len(content) // PIECE_BYTES
    assert on_the_loop == {"in memory": {True}, "on disk": {False}, "by turns": {True, False}}[where]


def test_a_message_of_unknown_length_is_streamed() -> None:
    answer = sealed_answer(seal_message(b"header", [bytes(9)], KEY.public, bytes(32), bytes(32)))
    assert isinstance(answer, StreamingResponse)
    assert "content-length" not in answer.headers


# --- problems ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_a_problem_and_comes_back_as_its_error(code: ErrorCode) -> None:
    assert 400 <= status_of(code) < 600
    body = problem_body(code, "what was found")
    assert json.loads(body)["title"] == PROBLEMS[code].title
    error = error_from(body, status_of(code))
    policy = code is ErrorCode.POLICY_REFUSAL  # no server has one: a site's clause cannot come from there
    assert (error.code, error.detail) == (ErrorCode.MALFORMED_MESSAGE if policy else code, "what was found")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"code": "unheard_of", "detail": "x"}'])
def test_an_unreadable_problem_means_try_again(body: bytes) -> None:
    error = error_from(body, 502)
    assert isinstance(error, errors.Unavailable)
    assert "502" in error.detail


def test_an_unexpected_error_shows_nothing() -> None:
    assert json.loads(internal_problem())["code"] == "internal"
    assert issubclass(type(error_from(b"", 500)), MoietyError)
