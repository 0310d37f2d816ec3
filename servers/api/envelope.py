"""Requests out of their envelopes and answers into theirs: ASGI middleware in front of every signed route.

What a site or the peer asks is in an envelope that only this server opens; the answer is sealed to the caller, or
sealed already, and signed over the request (docs/protocol.md 3, 14). A site that has a session asks and is answered
under its keys instead. An answer to a request whose signature or session is not accepted is signed by nobody: it proves
nothing, and whoever gets it only waits, or asks in an envelope.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from host import log
from protocol.channel import session
from protocol.channel.commitment import head_digest
from protocol.channel.envelope import (
    ANSWER_TYPE,
    LENGTH_BYTES,
    SEALED_TYPE,
    Correspondence,
    EnclosedRequest,
    close_answer,
    envelope_length,
    open_request,
)
from protocol.channel.signing import DigestField, only_line, sign_answer, signed_digest
from protocol.errors import BadSignature, BrokenSeal, MalformedMessage, MoietyError, NotListed
from protocol.messages.control import MAX_CONTROL_BYTES, Party
from protocol.messages.paths import PEER_SEALED, SEALED
from protocol.ot.session import SITE_ELEMENTS, extension_message_bytes
from protocol.parameters import PROTOCOL_VERSION
from servers.api.authentication import ENCLOSED, note_authenticated, note_heard, signer_of
from servers.api.responses import problem_answer
from servers.event_loop import off_loop
from servers.identity.sessions import Session
from servers.rounds.intake import Caller
from servers.server import Server

Headers: TypeAlias = list[tuple[str, str]]
VERSION_LINE: Final = ("moiety-version", PROTOCOL_VERSION)
_PEER_PREFIX: Final = "/v1/peer/"
_ADDRESSES: Final = (SEALED, PEER_SEALED)
_ELEMENT_BYTES: Final = 8
_OK: Final = 200
_DIGESTS: Final = frozenset(field.value for field in DigestField)
_TEXT: Final = ("content-type", "application/json")
_OF_A_SESSION: Final = [("content-type", session.SESSION_TYPE)]
_log = log.logger("http")


class _Closing(Protocol):
    """The outgoing answer to one request: headers, and what of the body there is already."""

    async def enclosed(self, status: int, body: bytes, is_text: bool) -> tuple[Headers, bytes]: ...

    def in_front(self, field: DigestField, digest: bytes) -> tuple[Headers, bytes]: ...


@dataclass(frozen=True)
class _Opened:
    """A request out of its envelope: who asked, how it is answered, and the body as ASGI hands it over."""

    caller: Caller
    request: EnclosedRequest
    body: _Body
    closing: _Closing


def is_sealed(scope: Scope) -> bool:
    """Return whether a request is one in an envelope."""
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
            await self._app(inner, opened.body, _Answering(opened, send))
        finally:
            scope["route"] = inner.get("route")

    async def _opened(self, scope: Scope, receive: Receive) -> _Opened:
        between_servers = scope["path"] == PEER_SEALED
        if not between_servers and _in_session(scope):
            opened = await self._out_of_session(scope, receive)
        else:
            opened = await self._out_of_envelope(scope, receive, between_servers)
        target = opened.request.target
        if target.startswith(_PEER_PREFIX) is not between_servers or target in _ADDRESSES:
            raise MalformedMessage(f"{scope['path']} does not take what is enclosed: use the other address")
        return opened

    async def _out_of_envelope(self, scope: Scope, receive: Receive, between_servers: bool) -> _Opened:
        server = self._server
        party, verified = signer_of(scope, server)
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
        request, enclosed = await off_loop(len(sealed), partial(open_request, sealed, server.keys.sealing, between))
        caller = Caller(party, bytes.fromhex(request.body_digest), request.digest_field)
        body.put_back(enclosed, request.body_bytes)
        return _Opened(caller, request, body, _Signed(server, party, between, _signature(scope)))

    async def _out_of_session(self, scope: Scope, receive: Receive) -> _Opened:
        server, body = self._server, _Body(receive)
        tagged = await body.take(session.HEAD_BYTES)
        held, head = server.sessions.take(tagged, server.is_site, server.keys.key_id)
        note_authenticated(scope)
        note_heard(server, held.party, head.created)
        sealed = await body.take(head.sealed_bytes)
        opening = partial(session.open_request, held.keys, tagged, sealed)
        request, enclosed, back = await off_loop(len(sealed), opening)
        caller = Caller(held.party, bytes.fromhex(request.body_digest), request.digest_field, in_session=True)
        body.put_back(enclosed, request.body_bytes)
        return _Opened(caller, request, body, _InSession(held, head, request.method == "GET", back))

    def _most_bytes(self, between_servers: bool) -> int:
        """Return the most that an envelope may enclose: between the servers also a round's masked vectors and
        transfers.
        """
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
        """Put the envelope's part of a body of so many bytes before what follows it.

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
    """Takes a route's answer: what is sealed already goes out as it comes, all else is closed whole."""

    def __init__(self, opened: _Opened, send: Send) -> None:
        self._closing = opened.closing
        self._send = send
        self._status = 0
        self._held = bytearray()
        self._passing = False
        self._in_front = b""
        self._is_text = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif self._passing:
            front, self._in_front = self._in_front, b""
            await self._send({**message, "body": front + message.get("body", b"")} if front else message)
        else:
            self._held += message.get("body", b"")
            if not message.get("more_body", False):
                headers, sealed = await self._closing.enclosed(self._status, bytes(self._held), self._is_text)
                await self._start([*headers, ("content-length", str(len(sealed)))])
                await self._send({"type": "http.response.body", "body": sealed})

    async def _begin(self, start: Message) -> None:
        self._status = start["status"]
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in start["headers"]]
        self._is_text = _TEXT in headers
        if self._status == _OK and any(name in _DIGESTS for name, _ in headers):
            self._passing = True
            made, self._in_front = self._closing.in_front(*signed_digest(headers))
            lengths = [int(value) + len(self._in_front) for name, value in headers if name == "content-length"]
            await self._start([*made, *(("content-length", str(length)) for length in lengths)])

    async def _start(self, headers: Headers) -> None:
        lines = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": _OK, "headers": lines})


class _Signed:
    """An answer in an envelope of its own, signed over the request."""

    def __init__(self, server: Server, party: Party, between: Correspondence, signature: str) -> None:
        self._server = server
        self._party = party
        self._between = between
        self._signature = signature

    async def enclosed(self, status: int, body: bytes, is_text: bool) -> tuple[Headers, bytes]:
        party = self._party  # as it was when it asked: a change may have removed it since
        known = self._server.is_known(party)
        key = self._server.sealing_key_of(party.name) if known else party.sealing
        sealed = await off_loop(len(body), partial(close_answer, status, body, key, self._between))
        return self._headers(ANSWER_TYPE, DigestField.CONTENT, hashlib.sha256(sealed).digest()), sealed

    def in_front(self, field: DigestField, digest: bytes) -> tuple[Headers, bytes]:
        return self._headers(SEALED_TYPE, field, digest), b""

    def _headers(self, content_type: str, field: DigestField, digest: bytes) -> Headers:
        server = self._server
        signed = sign_answer(
            _OK,
            content_type,
            digest,
            server.keys.signing,
            server.keys.key_id,
            created=int(server.clock()),
            request_signature=self._signature,
            digest_field=field,
        )
        return [*signed, VERSION_LINE]


class _InSession:
    """An answer under a session's keys; one to a question is held, since the next may be deflated against it."""

    def __init__(self, held: Session, head: session.SessionHead, is_question: bool, back: int) -> None:
        self._held = held
        self._head = head
        self._is_question = is_question
        self._back = back

    async def enclosed(self, status: int, body: bytes, is_text: bool) -> tuple[Headers, bytes]:
        answers, counter = self._held.answers, self._head.counter
        earlier = answers.of(counter - self._back) if self._back else b""
        if is_text and self._is_question and status == _OK:
            answers.keep(counter, body)
        made = session.SessionAnswer(status, body, is_text=is_text, earlier=earlier)
        close = partial(session.close_answer, self._held.keys, self._head, made)
        return _OF_A_SESSION, await off_loop(len(body), close)

    def in_front(self, field: DigestField, digest: bytes) -> tuple[Headers, bytes]:
        made = session.SessionAnswer(_OK, follows=field, digest=digest)
        return _OF_A_SESSION, session.close_answer(self._held.keys, self._head, made)


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
    return only_line(
        [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]], "signature"
    )


def _in_session(scope: Scope) -> bool:
    return (b"content-type", session.SESSION_TYPE.encode()) in scope["headers"]
