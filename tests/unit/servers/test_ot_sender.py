"""Side B's OT session: Delta's opening goes once it has been used, and a step that breaks off ends the session."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from protocol.channel.message import pack_frame
from protocol.errors import ProtocolViolation, UnknownResource
from protocol.messages.peer import BatchHeader
from servers.correlations import OtSessions, _Sending

NAME = "ab" * 16
SESSION = "ab" * 32


class FakeSender:
    closed = False

    def close(self) -> None:
        self.closed = True


class FakeOpening:
    """Answers, fails as a step can fail, or is cancelled."""

    def __init__(self, sender: FakeSender, error: BaseException | None = None) -> None:
        self._sender, self._error = sender, error

    def finish(self, reply: bytes) -> FakeSender:
        if self._error is not None:
            raise self._error
        return self._sender


def opened(error: BaseException | None = None) -> tuple[OtSessions, _Sending]:
    metrics = SimpleNamespace(pool=SimpleNamespace(set=lambda _: None))
    sessions = OtSessions(SimpleNamespace(metrics=metrics))  # type: ignore[arg-type]
    session = _Sending(NAME, bytes(16), FakeOpening(FakeSender(), error))  # type: ignore[arg-type]
    sessions._session = session
    return sessions, session


def test_the_opening_is_let_go_once_the_base_ots_are_done() -> None:
    sessions, session = opened()
    asyncio.run(sessions.finish_base(NAME, b""))
    assert sessions.session_open
    assert session.opening is None
    with pytest.raises(ProtocolViolation, match="base OTs are done"):
        asyncio.run(sessions.finish_base(NAME, b""))
    assert sessions.session_open


@pytest.mark.parametrize("error", [ProtocolViolation("no"), MemoryError(), asyncio.CancelledError()])
def test_a_step_that_breaks_off_ends_the_session(error: BaseException) -> None:
    sessions, _ = opened(error)
    with pytest.raises(type(error)):
        asyncio.run(sessions.finish_base(NAME, b""))
    with pytest.raises(UnknownResource):
        sessions.require(NAME)


def test_a_dropped_session_is_closed() -> None:
    sessions, session = opened()
    asyncio.run(sessions.finish_base(NAME, b""))
    sender = session.sender
    with pytest.raises(MemoryError), sessions._dropping():
        raise MemoryError
    assert isinstance(sender, FakeSender)
    assert sender.closed
    with sessions._dropping():
        pass


def test_a_batch_that_comes_again_or_out_of_turn_moves_nothing() -> None:
    """Both sides' streams go on with every batch: a copy that was taken would make every later product wrong."""
    sessions, session = opened()
    taken: list[bytes] = []
    asyncio.run(sessions.finish_base(NAME, b""))

    def challenge(columns: bytes, lengths: object, rand: bytes) -> tuple[object, bytes]:
        taken.append(columns)
        return object(), b"challenge"

    sessions._server.randomness = SimpleNamespace(bytes=lambda size, label: bytes(size))
    sessions._server.failpoints = SimpleNamespace(reach=lambda point: None)  # type: ignore[assignment]
    session.sender.challenge = challenge  # type: ignore[union-attr, method-assign]

    def extend(batch: int) -> bytes:
        header = BatchHeader(session=SESSION, batch=batch, lengths=((4,),))
        return asyncio.run(sessions.extend(SESSION, batch, pack_frame(header, b"columns %d" % batch)))

    session.name = SESSION
    assert extend(0) == b"challenge"
    for wrong in (0, 2):
        with pytest.raises(ProtocolViolation, match="batch 1 comes next"):
            extend(wrong)
    assert sessions.session_open
    assert extend(1) == b"challenge"
    assert taken == [b"columns 0", b"columns 1"]
