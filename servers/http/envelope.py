"""Requests out of their envelopes and answers into theirs: ASGI middleware in front of every signed route.

What a site or the peer asks is in an envelope that only this server opens; the answer is sealed to the caller, or
sealed already, and signed over the request (docs/protocol.md 3, 14). An answer to a request whose signature is not
accepted is signed by nobody: it proves nothing, and whoever gets it only waits.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from host import log
from protocol.errors import BadSignature, BrokenSeal, MalformedMessage, MoietyError, NotListed
from protocol.mpc.ot.session import SITE_ELEMENTS, extension_message_bytes
from protocol.parameters import PROTOCOL_VERSION
from protocol.wire.channel.answers import sign_answer
from protocol.wire.channel.envelope import (
    ANSWER_TYPE,
    LENGTH_BYTES,
    SEALED_TYPE,
    Correspondence,
    EnclosedRequest,
    close_answer,
    envelope_length,
    open_request,
)
from protocol.wire.channel.signing import DigestField, only_line, signed_digest
from protocol.wire.commitment import head_digest
from protocol.wire.messages import MAX_CONTROL_BYTES
from protocol.wire.paths import PEER_SEALED, SEALED
from servers.http.authentication import ENCLOSED, Caller, signer_of
from servers.http.responses import problem_answer
from servers.server import Server

VERSION_HEADER: Final = (b"moiety-version", PROTOCOL_VERSION.encode())
_PEER_PREFIX: Final = "/v1/peer/"
_ADDRESSES: Final = (SEALED, PEER_SEALED)
_ELEMENT_BYTES: Final = 8
_OFF_LOOP_BYTES: Final = 2**16
"""From this length on sealing and opening leave the event loop to others."""
_OK: Final = 200
_DIGESTS: Final = frozenset(field.value for field in DigestField)
_log = log.logger("http")
T = TypeVar("T")


@dataclass(frozen=True)
class _Opened:
    """A request out of its envelope: who asked, under which signature, and the body as ASGI hands it over."""

    caller: Caller
    between: Correspondence
    signature: str
    request: EnclosedRequest
    body: _Body


def is_sealed(scope: Scope) -> bool:
    """Whether a request is one in an envelope."""
    return scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in _ADDRESSES


class Envelope:
    """Opens requests to SEALED and PEER_SEALED, hands them on as what they hold, and seals and signs the answers."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_sealed(scope):
            await self._app(scope, receive, send)
            return
        try:
            opened = await self._opened(scope, receive)
        except ClientDisconnect:
            return
        except MoietyError as error:
            _log.info("refused", route=scope["path"], code=error.code, detail=error.detail)
            answer = problem_answer(self._server, error.code, error.detail)
            answer.headers["moiety-version"] = PROTOCOL_VERSION
            await answer(scope, receive, send)
            return
        inner = _inner_scope(scope, opened)
        try:
            await self._app(inner, opened.body, _Answering(self._server, opened, send))
        finally:
            scope["route"] = inner.get("route")

    async def _opened(self, scope: Scope, receive: Receive) -> _Opened:
        """Raises: what is wrong with signature, envelope or address"""
        server = self._server
        party, verified = signer_of(scope, server)
        between_servers = scope["path"] == PEER_SEALED
        if server.is_peer(party) is not between_servers or (not between_servers and not server.is_site(party)):
            raise NotListed(f"{scope['path']} is for {'the other server' if between_servers else 'sites'}")
        if verified.digest_field is not DigestField.SEALED_HEAD:
            raise BadSignature(f"a request in an envelope carries {DigestField.SEALED_HEAD.value!r}")
        body = _Body(receive)
        prefix = await body.take(LENGTH_BYTES)
        sealed = await body.take(envelope_length(prefix, self._most_bytes(between_servers)))
        outer = Caller(party, verified.body_digest, verified.digest_field)
        outer.require_digest(head_digest(prefix + sealed), DigestField.SEALED_HEAD)
        between = Correspondence(verified.key_id, server.keys.key_id, verified.nonce)
        request, enclosed = await _off_loop(len(sealed), partial(open_request, sealed, server.keys.sealing, between))
        if request.target.startswith(_PEER_PREFIX) is not between_servers or request.target in _ADDRESSES:
            raise MalformedMessage(f"{scope['path']} does not take what is enclosed: use the other address")
        caller = Caller(party, bytes.fromhex(request.body_digest), request.digest_field)
        body.put_back(enclosed, request.body_bytes)
        return _Opened(caller, between, _signature(scope), request, body)

    def _most_bytes(self, between_servers: bool) -> int:
        """What an envelope may enclose: between the servers also a round's masked vectors and transfers."""
        if not between_servers:
            return MAX_CONTROL_BYTES
        vectors = _ELEMENT_BYTES * SITE_ELEMENTS * self._server.most_sites
        return MAX_CONTROL_BYTES + max(vectors, extension_message_bytes(SITE_ELEMENTS))


class _Body:
    """A request's body: first the envelope, by length, then what it encloses and what follows, as ASGI messages."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._held = bytearray()
        self._ended = False
        self._handed = False
        self._left = 0

    async def take(self, length: int) -> bytes:
        """Raises: BrokenSeal, when the body ends before; ClientDisconnect"""
        while len(self._held) < length:
            if self._ended:
                raise BrokenSeal("the request ends before its envelope does: send all of it")
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self._held += message.get("body", b"")
            self._ended = not message.get("more_body", False)
        taken = bytes(self._held[:length])
        del self._held[:length]
        return taken

    def put_back(self, enclosed: bytes, body_bytes: int) -> None:
        """What the envelope held of a body of so many bytes comes before what follows it.

        Anybody on the way can put more behind it; a refusal that this brings about would be signed.
        """
        self._held[:0] = enclosed
        self._left = body_bytes

    async def __call__(self) -> Message:
        if self._handed:
            message = await self._receive()
            if message["type"] == "http.disconnect" or not self._left:
                return message
            return self._handed_on(message.get("body", b""), message.get("more_body", False))
        self._handed = True
        held, self._held = bytes(self._held), bytearray()
        return self._handed_on(held, not self._ended)

    def _handed_on(self, data: bytes, more: bool) -> Message:
        data = data if len(data) <= self._left else data[: self._left]
        self._left -= len(data)
        return {"type": "http.request", "body": data, "more_body": more and self._left > 0}


class _Answering:
    """Takes a route's answer: what is sealed already goes out as it comes, all else in an envelope; both signed."""

    def __init__(self, server: Server, opened: _Opened, send: Send) -> None:
        self._server = server
        self._opened = opened
        self._send = send
        self._status = 0
        self._held = bytearray()
        self._passing = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif self._passing:
            await self._send(message)
        else:
            self._held += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish()

    async def _begin(self, start: Message) -> None:
        self._status = start["status"]
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in start["headers"]]
        if self._status == _OK and any(name in _DIGESTS for name, _ in headers):
            field, digest = signed_digest(headers)
            length = [value for name, value in headers if name == "content-length"]
            self._passing = True
            await self._start(SEALED_TYPE, digest, field, length)

    async def _finish(self) -> None:
        opened, held = self._opened, bytes(self._held)
        party = opened.caller.party  # as it was when it asked: a change may have removed it since
        known = self._server.is_known(party)
        key = self._server.sealing_key_of(party.name) if known else party.sealing
        sealed = await _off_loop(len(held), partial(close_answer, self._status, held, key, opened.between))
        digest = hashlib.sha256(sealed).digest()
        await self._start(ANSWER_TYPE, digest, DigestField.CONTENT, [str(len(sealed))])
        await self._send({"type": "http.response.body", "body": sealed})

    async def _start(self, content_type: str, digest: bytes, field: DigestField, length: list[str]) -> None:
        server = self._server
        signed = sign_answer(
            _OK,
            content_type,
            digest,
            server.keys.signing,
            server.keys.key_id,
            created=int(server.clock()),
            request_signature=self._opened.signature,
            digest_field=field,
        )
        lines = [(name.lower(), value) for name, value in signed] + [("content-length", value) for value in length]
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines]
        await self._send({"type": "http.response.start", "status": _OK, "headers": [*headers, VERSION_HEADER]})


def _inner_scope(scope: Scope, opened: _Opened) -> dict[str, Any]:
    """The scope of what is enclosed; the outer head, which anybody on the way can write, has no part in it."""
    path, _, query = opened.request.target.partition("?")
    headers = [(b"host", b"enclosed"), (b"content-length", str(opened.request.body_bytes).encode())]
    return {
        **scope,
        "method": opened.request.method,
        "path": path,
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "headers": headers,
        ENCLOSED: opened.caller,
    }


def _signature(scope: Scope) -> str:
    """The request's Signature field, which the answer's signature covers."""
    return only_line(
        [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]], "signature"
    )


async def _off_loop(length: int, work: Callable[[], T]) -> T:
    return work() if length < _OFF_LOOP_BYTES else await asyncio.to_thread(work)
