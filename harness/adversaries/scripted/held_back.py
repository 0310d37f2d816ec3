"""A request whose body is held back: so much of it arrives as its sender lets go, while other requests go on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx

from harness.adversaries.signed_client import ENCLOSED_OF_LONG_BODIES, Outgoing, SignedClient


class HeldBack:
    """Sent at once, in a thread of its own; behind its envelope nothing arrives before :meth:`let_go`.

    To servers in memory alone.
    """

    def __init__(self, client: SignedClient, outgoing: Outgoing, body: bytes) -> None:
        self._before = len(outgoing.content) - len(body)
        self._passed, self._allowed = 0, self._before + ENCLOSED_OF_LONG_BODIES
        self._loop: asyncio.AbstractEventLoop | None = None
        self._more: asyncio.Future[None] | None = None
        self._idle = threading.Event()
        self._answer: httpx.Response | None = None
        self._thread = threading.Thread(target=self._send, args=(client, outgoing), name="held back")
        self._thread.start()
        self._idle.wait()

    def let_go(self, body_bytes: int) -> None:
        """So many of the body's first bytes arrive; returns once the server has taken them, or has answered."""
        self._arrive(self._before + body_bytes)

    def answer(self) -> httpx.Response | None:
        """The server's answer, once everything has arrived; None where its sender had waited too long before."""
        self._arrive(None)
        self._thread.join()
        return self._answer

    def _arrive(self, allowed: int | None) -> None:
        self._idle.clear()
        self._allowed = 2**62 if allowed is None else allowed
        if not self._thread.is_alive():
            return
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)
        self._idle.wait()

    def _send(self, client: SignedClient, outgoing: Outgoing) -> None:
        try:
            self._answer = client.post(outgoing, held_back=self)
        except httpx.TransportError:
            pass
        finally:
            self._idle.set()

    # --- in the servers' event loop ---

    async def next_message(self, content: bytes) -> dict[str, Any]:
        self._loop = asyncio.get_running_loop()
        while self._passed >= min(self._allowed, len(content)):
            self._more = self._loop.create_future()
            self._idle.set()
            await self._more
        piece = content[self._passed : self._allowed]
        self._passed += len(piece)
        return {"type": "http.request", "body": piece, "more_body": self._passed < len(content)}

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)
