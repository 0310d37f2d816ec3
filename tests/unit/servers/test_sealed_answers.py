"""A sealed answer says how long it is; a short one leaves in one piece."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from fastapi.responses import StreamingResponse

from protocol.channel.sealing import Octets, SealedMessage, seal_message
from protocol.messages import bodies
from protocol.messages.control import OutputHeader, ShareKind
from protocol.sharing import Side
from servers.http.responses import sealed_answer
from servers.store.files.pieces import PIECE_BYTES, FilePieces
from tests.sealed_bodies import KEY, SECRET


@pytest.mark.parametrize(("length", "at_once"), [(1000, True), (10_000, False)])
def test_its_length_is_known_before_it_is_sealed(length: int, at_once: bool) -> None:
    header = OutputHeader(
        release_digest="ab" * 32, side=Side.A, share_kind=ShareKind.VECTOR, recipient="cd" * 16, length=length
    )
    answer = sealed_answer(bodies.seal_output(header, [bytes(8 * length)], KEY.public, SECRET))
    sent = bodies.seal_output(header, [bytes(8 * length)], KEY.public, SECRET).whole()
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
