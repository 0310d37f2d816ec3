"""Side A sends two masked sums at once: the output that sites may have fetched already is not replaced by the second.

The requests are interleaved for real: both have passed every look at the round before either of them ends.

A unit test of two requests interleaved to the byte, which no attack from outside can time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.messages.control import RoundState, Signed, sign
from protocol.sharing import Side
from servers.routes import peer as peer_routes
from servers.store.files.shares import Draft, ShareFiles
from servers.store.sql import SqlStore
from servers.store.study_records import RoundRecord
from tests.unit.servers.test_one_end_a_round import AGREED, ALL, ANNOUNCED, KEY, OPERATORS, PARTIES, server_on, store

__all__ = ["store"]


@pytest.fixture
def record() -> RoundRecord:
    """Measured, with the requester's release set: side B waits for A's masked sum."""
    agreed = sign(AGREED, OPERATORS[0], PARTIES.keys[OPERATORS[0]].signing)
    signed = Signed[Any](message=ANNOUNCED)
    closes = float(ANNOUNCED.closes_at_s)
    return RoundRecord(KEY, RoundState.MEASURED, signed, closes, agreed_set=agreed, release_set=ALL)


class Upload:
    """A request whose body arrives when the test says so."""

    def __init__(self, body: bytes) -> None:
        self.started, self.go_on = asyncio.Event(), asyncio.Event()
        self._body = body

    async def stream(self) -> AsyncIterator[bytes]:
        self.started.set()
        await self.go_on.wait()
        yield self._body


class Taken:
    """What comes is the output, as it is."""

    def __init__(self, server: Any, record: RoundRecord, parameters: Any, draft: Draft) -> None:
        self._draft = draft

    def feed(self, data: bytes | bytearray) -> None:
        self._draft.write(bytes(data))

    def finish(self, caller: Any) -> None:
        assert caller is not None

    def half_digest(self) -> None:
        """The round has no tags."""


def output(server: Any, kept: RoundRecord | None) -> bytes:
    assert kept is not None
    assert kept.output_file is not None
    return b"".join(server.files.read(kept.output_file))


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_sums_at_once_the_first_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: SqlStore, first: int
) -> None:
    monkeypatch.setattr(peer_routes, "SealedMaskedSum", Taken)
    server = server_on(Side.B, store)
    server.files = ShareFiles(tmp_path / "shares", 0)
    server.boot, server.outputs = 1, itertools.count()
    monkeypatch.setattr(peer_routes, "_with_release_set", lambda record, masks: record)
    held: Any = SimpleNamespace(round=store.round)
    seen: list[bytes] = []

    async def both() -> None:
        uploads = [Upload(b"one output"), Upload(b"another one")]

        def put(upload: Upload) -> Any:
            request: Any = upload
            caller: Any = object()
            name = store.study(KEY.study).name
            return asyncio.create_task(
                peer_routes.put_masked_sum(name, KEY.round, KEY.attempt, request, server, held, caller)
            )

        tasks = [put(upload) for upload in uploads]
        for upload in uploads:
            await upload.started.wait()
        for place in (first, 1 - first):
            uploads[place].go_on.set()
            await tasks[place]
            seen.append(output(server, store.round(KEY)))

    asyncio.run(both())
    assert seen == [[b"one output", b"another one"][first]] * 2
    kept = store.round(KEY)
    assert kept is not None
    assert kept.state is RoundState.RELEASED
    assert [path.name for path in (tmp_path / "shares").iterdir()] == [kept.output_file]


def test_a_sum_that_comes_after_a_skip_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: SqlStore
) -> None:
    """The skip is signed while the sum is on its way."""
    monkeypatch.setattr(peer_routes, "SealedMaskedSum", Taken)
    monkeypatch.setattr(peer_routes, "_with_release_set", lambda record, masks: record)
    server = server_on(Side.B, store)
    server.files = ShareFiles(tmp_path / "shares", 0)
    server.boot, server.outputs = 1, itertools.count()
    held: Any = SimpleNamespace(round=store.round)

    async def late() -> None:
        upload: Any = Upload(b"an output")
        caller: Any = object()
        name = store.study(KEY.study).name
        task = asyncio.create_task(
            peer_routes.put_masked_sum(name, KEY.round, KEY.attempt, upload, server, held, caller)
        )
        await upload.started.wait()

        store.change_round(KEY, lambda r: replace(r, state=RoundState.SKIPPED))
        upload.go_on.set()
        await task

    with pytest.raises(Exception, match="released"):
        asyncio.run(late())
    assert list((tmp_path / "shares").iterdir()) == []
