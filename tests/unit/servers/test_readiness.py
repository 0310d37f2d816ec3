"""Readiness is looked at seldom, however often somebody asks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.errors import PeerUnreachable
from protocol.sharing import Side
from servers.readiness import Readiness


class Peer:
    def __init__(self, error: PeerUnreachable | None = None) -> None:
        self.calls = 0
        self.error = error

    async def reachable(self) -> None:
        self.calls += 1
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error


def app_with(peer: Peer) -> Any:
    server = SimpleNamespace(store=SimpleNamespace(ready=lambda: None), side=Side.A)
    return SimpleNamespace(state=SimpleNamespace(server=server, peer=peer, pool=SimpleNamespace(session_open=True)))


def test_a_hundred_questions_are_one_call_to_the_peer() -> None:
    peer = Peer()

    async def ask() -> None:
        readiness = Readiness(app_with(peer))
        await asyncio.gather(*(readiness.require() for _ in range(100)))

    asyncio.run(ask())
    assert peer.calls == 1


def test_what_is_not_ready_is_asked_again_after_half_a_second() -> None:
    peer = Peer(PeerUnreachable("down"))

    async def ask() -> None:
        readiness = Readiness(app_with(peer))
        for _ in range(50):
            with pytest.raises(PeerUnreachable):
                await readiness.require()
        assert peer.calls == 1
        peer.error = None
        await asyncio.sleep(0.55)
        await readiness.require()

    asyncio.run(ask())
    assert peer.calls == 2
