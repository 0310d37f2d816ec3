"""Both servers' applications on one event loop, asked without envelopes; they crash, and start again.

Everything behind the envelope is real: routes, decisions, SQLite, files. Requests are not signed or sealed: the
application is told who asks, once its roster has their key, and the carrier refuses a request that is too old."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final
from unittest import mock

import httpx
from fastapi import FastAPI
from sqlalchemy.exc import OperationalError
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp

from harness.faults.prepared_servers import MADE_ONCE, Federation, one_back
from harness.faults.schedule import Died, PowerCut, Reaching
from harness.faults.simulation import STARTED_AGAIN_S
from harness.federation.network import Network
from harness.federation.server_apps import DEALT, ServerPair, answer_to, scope_of
from protocol.channel.commitment import MessageDigest, head_digest
from protocol.channel.message import unpack_frame
from protocol.channel.sealing import SealedMessage
from protocol.channel.signing import MAX_AGE_S, DigestField
from protocol.errors import HistoryUnknown, MoietyError, PeerUnreachable
from protocol.messages.control import Party
from protocol.messages.peer import ProductsHeader
from protocol.sharing import Side
from servers.api.authentication import ENCLOSED, _key_of
from servers.app import create_app
from servers.peer_client import Method, PeerClient
from servers.problems import error_from
from servers.rounds.intake import Caller
from servers.server import Server
from servers.store.migrate import upgrade
from servers.store.sql import SqlStore

_PATIENCE_S: Final = 40.0
_UNEXPECTED: Final = 500
_STRANGER: Final = 401
_MOST_VAIN_STARTS: Final = 200
"""A server that fails to start so often in a row has no disk that is merely full for a time."""


class Pair(ServerPair):
    """``at_point`` is asked at every failpoint for how long the server is to be away, None where it goes on."""

    def __init__(self, made: Federation, network: Network, at_point: Callable[[Side, str, int], float | None]) -> None:
        super().__init__(made.settings, network)
        self._operator_a = made.first.head.operator_a.name
        self._inside: dict[Side, ASGIApp] = {}
        self.power = PowerCut()
        self.products_sent: list[Products] = []
        self.errors: list[str] = []
        self.on_start: Callable[[Side], None] = lambda side: None
        self.on_sent: Callable[[bytes], None] = lambda body: None
        self.on_answer: Callable[[Server, httpx.Request, httpx.Response], None] = lambda server, request, answer: None
        self.of_schema_before: set[Side] = set()
        self._put_back: set[Side] = set()
        self._vain_starts: Counter[Side] = Counter()
        self._away: Counter[Side] = Counter()
        self._at_point = at_point
        self._counted: Counter[tuple[Side, str]] = Counter()

    # --- starting and dying ---

    def made(self, side: Side) -> FastAPI:
        points = Reaching(side, self._reached, self._counted)
        with mock.patch("servers.server.failpoints_of", return_value=points), MADE_ONCE.shared():
            app = create_app(self.settings[side], clock=self.clock_of(f"server {side.value}").now, transfer=DEALT)
        handler: Any = app.exception_handlers[Exception]
        self._inside[side] = ServerErrorMiddleware(app.enclosed, handler=handler)
        return app

    def start(self, side: Side) -> None:
        super().start(side)
        self._lives[side].add_done_callback(self._ended)
        self.on_start(side)

    def _ended(self, life: asyncio.Task[None]) -> None:
        """A server that an error ends, and nobody killed, is a broken promise."""
        failure = None if life.cancelled() else life.exception()
        if isinstance(failure, Exception):
            self.errors.append(f"error: a server ended by itself: {failure!r}")

    @contextmanager
    def light_peers(self) -> Iterator[None]:
        """Whatever server A starts meanwhile reaches its peer here."""
        with mock.patch("servers.background.duties.PeerClient", lambda server, _: LightPeer(self, server)):
            yield

    def upgrade(self, url: str) -> None:
        """As a start of a server does it, for one whose database is put back to the schema before."""
        for side in [one for one in self.of_schema_before if self.settings[one].database == url]:
            if side not in self._put_back:  # a full disk may stop what follows: the tables are put back once
                one_back(url)
                self._put_back.add(side)
            upgrade(url)
            self.of_schema_before.discard(side)
            self._put_back.discard(side)

    def goes(self, side: Side) -> None:
        """The machine loses its power."""
        self._away[side] += 1
        if side in self.living:
            self.die(side)
            self.power.cut(self.settings[side].data_dir / "shares")

    def comes_back(self, side: Side) -> None:
        self._away[side] -= 1
        if self._away[side] <= 0:
            try:
                self.start(side)
            except (MoietyError, OSError, OperationalError) as failure:
                self._away[side] += 1
                self._vain_starts[side] += 1
                if self._vain_starts[side] == _MOST_VAIN_STARTS:
                    self.errors.append(f"error: server {side.value} does not start any more: {failure!r}")
                else:
                    self.loop.call_later(STARTED_AGAIN_S, self.comes_back, side)
            else:
                self._vain_starts[side] = 0

    def _reached(self, side: Side, point: str, number: int) -> None:
        away_s = self._at_point(side, point, number)
        if away_s is not None and side in self.living:
            self.goes(side)
            self.loop.call_later(away_s, self.comes_back, side)
            raise Died

    # --- asking ---

    async def ask(self, who: Party, side: Side, method: str, target: str, body: bytes, kind: str) -> httpx.Response:
        """Raises: httpx.TransportError"""
        field = DigestField.SEALED if target.endswith("/contribution") else DigestField.CONTENT
        return await self.asked(who, side, method, target, body, kind, (field, _digest(field, body)))

    async def asked(
        self,
        who: Party,
        side: Side,
        method: str,
        target: str,
        body: bytes,
        kind: str,
        signed: tuple[DigestField, bytes],
    ) -> httpx.Response:
        name = f"server {Side.A.value}" if who.name == self._operator_a else who.name
        self.on_sent(body)
        caller = Caller(who, signed[1], signed[0])
        told = {"purpose": kind, "caller": caller, "sent_s": self.clock_of(name).now()}
        request = httpx.Request(
            method, _url(f"http://a{target}"), content=body, extensions={**told, "timeout": {"read": _PATIENCE_S}}
        )
        return await self.carrier.carry(request, name, side, partial(self._deliver, side))

    async def _deliver(self, side: Side, request: httpx.Request) -> httpx.Response:
        here_s = self.clock_of(f"server {side.value}").now()
        if side not in self.living or abs(here_s - request.extensions["sent_s"]) > MAX_AGE_S:
            raise httpx.ConnectError("nobody answers")
        server: Server = self.apps[side].state.server
        who: Party = request.extensions["caller"].party
        if _key_of(server, who.key_id) is None:  # as the envelope's signature is checked
            return httpx.Response(_STRANGER)
        removed = server.chain.head.party(who.name) is None
        answer = await self.answer(side, request)
        self.on_sent(answer.content)
        if answer.status_code == _UNEXPECTED:
            self.errors.append(f"error: server {side.value} answered 500 to {request.extensions['purpose']}")
        if removed and answer.is_success:
            self.errors.append(
                f"removed: server {side.value} took {request.extensions['purpose']} of {who.name}, whom its roster "
                "does not have any more"
            )
        if side in self.living:
            self.on_answer(self.apps[side].state.server, request, answer)
        return answer

    async def respond(self, side: Side, request: httpx.Request, left: list[httpx.Response]) -> None:
        """A body comes in two pieces, and others have their turn between."""
        half = len(request.content) // 2
        coming = [request.content[half:], request.content[:half]]

        async def receive() -> dict[str, Any]:
            if len(coming) == 1:
                await asyncio.sleep(0.01)
            if not coming:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": coming.pop(), "more_body": bool(coming)}

        asked = {"headers": [], "app": self.apps[side], ENCLOSED: request.extensions["caller"]}
        await answer_to(self._inside[side], scope_of(request) | asked, receive, left)


@lru_cache(maxsize=1000)
def _url(text: str) -> httpx.URL:
    """Parsing takes longer than asking; sites ask at the same addresses again and again."""
    return httpx.URL(text)


def _digest(field: DigestField, body: bytes) -> bytes:
    if field is DigestField.CONTENT:
        return hashlib.sha256(body).digest()
    digest = MessageDigest()
    digest.update(body)
    return digest.digest()


_USED = SqlStore.correlations_used
"""Whatever a mutation puts in its place."""


@dataclass(frozen=True)
class Products:
    """Masked vectors that left: for which attempt, with which correlations, and whether those were marked as used."""

    label: str
    correlations: tuple[str, ...]
    digest: str
    marked: bool


class LightPeer(PeerClient):
    """Without envelopes. What leaves of correlations is noted: which, for what bytes, and whether they were marked."""

    def __init__(self, pair: Pair, server: Server) -> None:
        self._pair, self._server, self._comparing = pair, server, asyncio.Lock()

    async def close(self) -> None:
        """Nothing is open."""

    async def put_sealed(self, path: str, message: SealedMessage, length: int, kind: str) -> bytes:
        await self._compared()
        body = b"".join((message.head, *message.body))
        return await self._carried("PUT", path, body, kind, (DigestField.SEALED_HEAD, head_digest(message.head)))

    async def stream(self, path: str, kind: str, most_bytes: int) -> AsyncGenerator[bytes]:
        yield await self.get(path, kind)

    async def _once(self, method: Method, path: str, body: bytes, kind: str, most_bytes: int) -> bytes:
        if kind == "products":
            self._note(body)
        return await self._carried(method, path, body, kind, (DigestField.CONTENT, hashlib.sha256(body).digest()))

    async def _carried(
        self, method: Method, path: str, body: bytes, kind: str, signed: tuple[DigestField, bytes]
    ) -> bytes:
        try:
            answer = await self._pair.asked(self._server.roster.operator_a, Side.B, method, path, body, kind, signed)
        except httpx.TransportError as error:
            raise PeerUnreachable(f"the peer is out of reach: {error}") from None
        if answer.is_error:
            refused = error_from(answer.content, answer.status_code)
            if isinstance(refused, HistoryUnknown):
                self._server.history.compared = False
            raise refused
        return answer.content

    def _note(self, frame: bytes) -> None:
        header, _ = unpack_frame(frame, ProductsHeader)
        refs = tuple(f"{one.session}/{one.batch}/{one.index}" for one in header.correlations)
        study = next(one.digest for one in self._server.store.studies())
        record = self._server.store.current_round(study)
        marked = record is not None and _USED(self._server.store, record.key) >= len(refs)
        label = "" if record is None else record.key.label
        self._pair.products_sent.append(Products(label, refs, hashlib.sha256(frame).hexdigest(), marked))
