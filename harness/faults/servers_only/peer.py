"""Side A's calls to side B without TLS and envelopes; see ``servers.http.peer_client`` for what they stand for."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final, Protocol, cast

import httpx

from protocol.errors import HistoryUnknown, PeerUnreachable
from protocol.sharing import Side
from protocol.wire import paths
from protocol.wire.channel.sealing import SealedMessage
from protocol.wire.channel.signing import DigestField
from protocol.wire.commitment import head_digest
from protocol.wire.history import Histories
from protocol.wire.messages import Party
from protocol.wire.peer_messages import ProductsHeader, unpack_frame
from servers.http.histories import heard, told
from servers.http.peer_client import Method
from servers.http.problems import error_from
from servers.server import Server
from servers.store.sql import SqlStore

_FIRST_REDIRECT: Final = 300
_FIRST_ERROR: Final = 400
_USED = SqlStore.correlations_used
"""Whatever a mutation puts in its place."""


@dataclass(frozen=True)
class Products:
    """Masked vectors that left: for which attempt, with which correlations, and whether those were marked as used."""

    label: str
    correlations: tuple[str, ...]
    digest: str
    marked: bool


@dataclass(frozen=True)
class Answered:
    """What came back of a request."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status < _FIRST_REDIRECT


class Between(Protocol):
    """Both servers, as one of them reaches the other."""

    products_sent: list[Products]

    async def asked(
        self,
        who: Party,
        side: Side,
        method: str,
        target: str,
        body: bytes,
        kind: str,
        signed: tuple[DigestField, bytes],
    ) -> Answered: ...


class LightPeer:
    """As PeerClient. What leaves of correlations is noted: which, for what bytes, and whether they were marked."""

    def __init__(self, pair: Between, server: Server) -> None:
        self._pair, self._server = pair, server

    async def get(self, path: str, kind: str) -> bytes:
        return await self._asked("GET", path, b"", kind)

    async def post(self, path: str, body: bytes, kind: str, most_bytes: int = 0) -> bytes:
        if kind == "products":
            self._note(body)
        return await self._asked("POST", path, body, kind)

    async def put(self, path: str, body: bytes, kind: str) -> bytes:
        return await self._asked("PUT", path, body, kind)

    async def put_sealed(self, path: str, message: SealedMessage, length: int, kind: str) -> bytes:
        body = b"".join((message.head, *message.body))
        return await self._asked("PUT", path, body, kind, DigestField.SEALED_HEAD, head_digest(message.head))

    async def stream(self, path: str, kind: str, most_bytes: int) -> AsyncGenerator[bytes]:
        yield await self._asked("GET", path, b"", kind)

    async def close(self) -> None:
        """Nothing is open."""

    async def compare(self) -> None:
        """Both servers say how far they came, as PeerClient does. Raises: RolledBack"""
        told_now = told(self._server).canonical()
        heard(self._server, Histories.parse(await self._once("POST", paths.PEER_HISTORY, told_now, "history")))
        self._server.history.require_current()

    async def _asked(
        self,
        method: Method,
        path: str,
        body: bytes,
        kind: str,
        field: DigestField = DigestField.CONTENT,
        digest: bytes | None = None,
    ) -> bytes:
        self._server.history.require_current()
        if not self._server.history.compared:
            await self.compare()
        try:
            return await self._once(method, path, body, kind, field, digest)
        except HistoryUnknown:
            await self.compare()
            return await self._once(method, path, body, kind, field, digest)

    async def _once(
        self,
        method: Method,
        path: str,
        body: bytes,
        kind: str,
        field: DigestField = DigestField.CONTENT,
        digest: bytes | None = None,
    ) -> bytes:
        me = self._server.roster.operator_a
        stated = hashlib.sha256(body).digest() if digest is None else digest
        try:
            answer = await self._pair.asked(me, Side.B, method, path, body, kind, (field, stated))
        except httpx.TransportError as error:
            raise PeerUnreachable(f"the peer is out of reach: {error}") from None
        if answer.status >= _FIRST_ERROR:
            raise error_from(answer.body, answer.status)
        return answer.body

    def _note(self, frame: bytes) -> None:
        header, _ = unpack_frame(frame, ProductsHeader)
        refs = tuple(f"{one.session}/{one.batch}/{one.index}" for one in header.correlations)
        study = next(one.digest for one in self._server.store.studies())
        record = self._server.store.current_round(study)
        marked = record is not None and _USED(cast(SqlStore, self._server.store), record.key) >= len(refs)
        label = "" if record is None else record.key.label
        self._pair.products_sent.append(Products(label, refs, hashlib.sha256(frame).hexdigest(), marked))
