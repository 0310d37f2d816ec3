"""Calls to the other server: requests, answers that are believed only with its signature, and both histories.

What does not carry the signature says nothing: the peer is out of reach. An answer in a content coding is refused
unread: a few hundred kB of gzip are half a gigabyte.

B is not trusted with A's memory or time: every answer has a bound that the caller states
and a least speed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from itertools import islice
from pathlib import Path
from typing import Final, Literal

import httpx

from host import log
from host.network import why_unreachable
from protocol.channel.commitment import CheckedHead, head_digest
from protocol.channel.envelope import (
    ANSWER_TYPE,
    SEALED_TYPE,
    Correspondence,
    EnclosedRequest,
    envelope_bytes,
    open_answer,
    sign_enclosed,
)
from protocol.channel.sealing import CHUNK_BYTES, SealedMessage
from protocol.channel.signing import DigestField, VerifiedAnswer, verify_answer
from protocol.errors import (
    BadSignature,
    BrokenSeal,
    HistoryUnknown,
    MalformedMessage,
    OtherVersion,
    PeerUnreachable,
    RolledBack,
    ShareAltered,
    TooLarge,
    UnknownResource,
)
from protocol.messages import paths
from protocol.messages.control import MAX_CONTROL_BYTES, Signed, check_signature, require_signatures, signature_from
from protocol.messages.peer import Histories, History
from protocol.parameters import require_version
from servers.event_loop import off_loop
from servers.problems import error_from
from servers.server import Server

PROBLEM_BYTES: Final = 2**14
_OK: Final = 200


@dataclass(frozen=True)
class PeerRequest:
    """A request as it is sent, and what its answer is bound to."""

    request: httpx.Request
    between: Correspondence
    signature: str


async def peer_answer(
    server: Server, asked: PeerRequest, response: httpx.Response, most_bytes: int
) -> tuple[int, AsyncIterator[bytes]]:
    """Return the status of an answer that the peer signed, and its body, which is the peer's once all of it was taken.

    Raises: PeerUnreachable, unless the peer signed this answer to this request; OtherVersion
    """
    try:
        verified = verify_answer(
            response.status_code,
            list(response.headers.multi_items()),
            asked.signature,
            server.verify_keys[server.peer.key_id],
            server.peer.key_id,
        )
        if verified.content_type != ANSWER_TYPE:
            return _OK, _streamed(response, verified, most_bytes)
        most = envelope_bytes(max(most_bytes, PROBLEM_BYTES))
        sealed = b"".join([piece async for piece in answer_pieces(response, most)])
        status, body = await off_loop(len(sealed), partial(_opened, server, asked, sealed, verified))
    except (BadSignature, BrokenSeal, MalformedMessage, TooLarge) as refused:
        require_version("the peer", response.headers.get("moiety-version"))
        raise PeerUnreachable(
            f"the peer answered {response.status_code}, but not over its signature: {refused.detail}; something in "
            "between changes answers, or the peer did not accept the request's signature (a clock, an old roster); "
            "nothing of it was believed, it is asked again"
        ) from None
    return status, _at_once(body)


def _opened(server: Server, asked: PeerRequest, sealed: bytes, verified: VerifiedAnswer) -> tuple[int, bytes]:
    if not hmac.compare_digest(hashlib.sha256(sealed).digest(), verified.body_digest):
        raise BadSignature("the body is not the one whose digest was signed")
    return open_answer(sealed, server.keys.sealing, asked.between)


async def _at_once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _streamed(response: httpx.Response, verified: VerifiedAnswer, most_bytes: int) -> AsyncIterator[bytes]:
    """A sealed body behind a signed head; no signature is over its length. Raises: PeerUnreachable"""
    head = CheckedHead(verified.body_digest)
    try:
        async for piece in answer_pieces(response, most_bytes):
            if checked := head.feed(piece):
                yield bytes(checked)
        head.finish()
    except (BadSignature, MalformedMessage, TooLarge) as refused:
        raise PeerUnreachable(f"the peer's answer is not the one it signed: {refused.detail}") from None


async def answer_pieces(response: httpx.Response, most_bytes: int) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises: MalformedMessage in a content coding; TooLarge, before it hands on a byte more"""
    coding = response.headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        raise MalformedMessage(
            f"the peer sent its answer in the content coding {coding[:40]!r}; only 'identity' was asked for: a proxy "
            "on the way that compresses must be told not to"
        )
    stated = response.headers.get("content-length", "0")
    if not stated.isdecimal() or int(stated[:20]) > most_bytes:
        raise _too_large(most_bytes)
    stream, taken = response.stream, 0
    assert isinstance(stream, httpx.AsyncByteStream), "the client is asynchronous"
    async for piece in stream:
        taken += len(piece)
        if taken > most_bytes:
            raise _too_large(most_bytes)
        yield piece


async def problem_bytes(response: httpx.Response) -> bytes:
    """The body of an error; one that no server of ours writes explains nothing, and its status alone counts."""
    try:
        return b"".join([piece async for piece in answer_pieces(response, PROBLEM_BYTES)])
    except (MalformedMessage, TooLarge):
        return b""


def no_cookies() -> CookieJar:
    """A jar that stays empty: what the peer would have this server keep is not kept."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


def _too_large(most_bytes: int) -> TooLarge:
    return TooLarge(
        f"the peer answered with more than the {most_bytes} bytes that the answer to this request can have; nothing "
        "of it was used: tell its operator"
    )


_log: Final = log.logger("history")


def histories_to_send(server: Server) -> Histories:
    """Raises: RolledBack, when the database went back while this process runs"""
    return Histories(own=server.sign(server.history.now()), known=server.store.history_of(server.peer.name))


def take_histories(server: Server, histories: Histories) -> None:
    """Keep how far the other server came; learn whether this one forgot something.

    Only what this server signed itself counts against it. Raises: BadSignature; RolledBack, when the other server shows
    less than it signed before
    """
    if histories.known is not None:
        _require_own(server, histories.known)
        server.history.shown(histories.known)
    theirs = require_signatures(histories.own, server.roster, [server.peer.name])
    if theirs.party != server.peer.name:
        raise BadSignature(f"a history of {theirs.party!r}, signed by {server.peer.name!r}")
    _keep(server, histories.own)
    if server.history.current:
        server.history.agreed()


def _keep(server: Server, signed: Signed[History]) -> None:
    theirs, kept = signed.message, server.store.history_of(server.peer.name)
    before = None if kept is None else kept.message
    if before is not None and not theirs.follows(before):
        if theirs.same_run(before):
            return  # of one start and late; what it said after that is kept
        server.history.compared = False
        _log.error("other_rolled_back", shows=theirs.place, signed=before.place)
        raise RolledBack(
            f"the other server shows {theirs.place} and has signed {before.place}: an older database of it was put "
            "back. Its operator puts the newest one back, or runs there: moiety server accept-rollback"
        )
    if theirs != before:
        server.store.keep_history(signed)
    if before is not None and theirs.restored_at_s > before.restored_at_s:
        _log.warning("other_restored", studies=server.store.strand(theirs.party))


def _require_own(server: Server, signed: Signed[History]) -> None:
    """Under any of the keys that this server had in the chain. Raises: BadSignature"""
    if signed.message.party != server.name:
        raise BadSignature(f"a history of {signed.message.party!r} in place of one of {server.name!r}")
    signature = signature_from(signed, server.name)
    keys = dict.fromkeys(roster.operator(server.side) for roster in server.chain.rosters)
    for party in keys:
        try:
            check_signature(signed.message, signature, party)
        except BadSignature:
            continue
        return
    raise BadSignature("the history that is said to be this server's was not signed by it")


_CONNECT_TIMEOUT_S: Final = 5.0
_PIECE_BYTES: Final = 2**20
_LEAST_BYTES_PER_S: Final = 2**16
_CONNECTIONS: Final = httpx.Limits(max_connections=48, max_keepalive_connections=16)
"""Fewer than the peer allows one address."""
_DATE_AGE_S: Final = 1.0
_FIRST_ERROR: Final = 400
Method = Literal["GET", "POST", "PUT"]
_EMPTY: Final = hashlib.sha256(b"").digest()


class AlteredAtPeer(ShareAltered):
    """A share that the other server stored, by that server's own word."""


class PeerClient:
    """Every method raises PeerUnreachable, or the error that the peer answered with."""

    def __init__(self, server: Server, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """``transport``: the way to the peer, where it is none over TLS."""
        self._server = server
        self._comparing = asyncio.Lock()
        self._peer_url = server.settings.peer_url or ""  # a server without one does not come so far
        timeout = httpx.Timeout(server.settings.limits.peer_timeout_s, connect=_CONNECT_TIMEOUT_S)
        transport = transport or _over_tls(server.settings.peer_ca)
        self._client = httpx.AsyncClient(transport=transport, timeout=timeout, trust_env=False, cookies=no_cookies())

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str, kind: str) -> bytes:
        return await self._whole("GET", path, b"", kind, MAX_CONTROL_BYTES)

    async def post(self, path: str, body: bytes, kind: str, most_bytes: int = MAX_CONTROL_BYTES) -> bytes:
        """The answer, of at most so many bytes."""
        return await self._whole("POST", path, body, kind, most_bytes)

    async def put(self, path: str, body: bytes, kind: str) -> bytes:
        return await self._whole("PUT", path, body, kind, MAX_CONTROL_BYTES)

    async def compare(self) -> None:
        """Both servers say how far they came. Raises: RolledBack, when either has come further; OtherVersion"""
        async with self._comparing:
            asked = histories_to_send(self._server).canonical()
            try:
                answer = await self._once("POST", paths.PEER_HISTORY, asked, "history", MAX_CONTROL_BYTES)
            except UnknownResource:
                raise OtherVersion(
                    "the other server runs a release that keeps no history: both servers install the same one"
                ) from None
            take_histories(self._server, Histories.parse(answer))
            self._server.history.require_current()

    async def _compared(self) -> None:
        """Once a start of either server, before anything else is asked. Raises: as ``compare``"""
        self._server.history.require_current()
        if not self._server.history.compared:
            await self.compare()

    async def put_sealed(self, path: str, message: SealedMessage, length: int, kind: str) -> bytes:
        """Send ``length`` bytes that are made while they are sent, sealed to the peer: signed is the head."""
        await self._compared()

        async def body() -> AsyncIterator[bytes]:
            yield message.head
            while piece := await asyncio.to_thread(_next_piece, message.body):
                yield piece

        self._count("out", kind, length)
        sent = self._request("PUT", path, b"", head_digest(message.head), DigestField.SEALED_HEAD, body(), length)
        return await self._sent(sent, kind, MAX_CONTROL_BYTES, sent_bytes=length)

    async def stream(self, path: str, kind: str, most_bytes: int) -> AsyncGenerator[bytes]:
        """The answer's body in pieces of about a megabyte, at most ``most_bytes`` in all."""
        await self._compared()
        asked = self._request("GET", path)
        asked.request.extensions["purpose"] = kind
        async with self._answered(asked, most_bytes) as pieces:
            held = bytearray()
            async for piece in pieces:
                self._count("in", kind, len(piece))
                held += piece
                if len(held) >= _PIECE_BYTES:
                    yield bytes(held)
                    held = bytearray()
            if held:
                yield bytes(held)

    async def reachable(self) -> None:
        """Return if the peer's /healthz answers."""
        try:
            async with asyncio.timeout(self._longest_s(PROBLEM_BYTES)):
                response = await self._client.send(
                    self._client.build_request("GET", f"{self._peer_url}/healthz"), stream=True
                )
                try:
                    await problem_bytes(response)
                finally:
                    await response.aclose()
        except (httpx.TransportError, TimeoutError) as error:
            raise self._unreachable(error) from error
        self._saw(response)
        if not response.is_success:
            raise PeerUnreachable(f"the peer's /healthz answers with status {response.status_code}")

    async def _whole(self, method: Method, path: str, body: bytes, kind: str, most_bytes: int) -> bytes:
        """A peer that was started anew since the last call first hears of this server's history."""
        await self._compared()
        try:
            return await self._once(method, path, body, kind, most_bytes)
        except HistoryUnknown:
            await self.compare()
            return await self._once(method, path, body, kind, most_bytes)

    async def _once(self, method: Method, path: str, body: bytes, kind: str, most_bytes: int) -> bytes:
        self._count("out", kind, len(body))
        digest = hashlib.sha256(body).digest()
        request = await off_loop(len(body), partial(self._request, method, path, body, digest))
        return await self._sent(request, kind, most_bytes, sent_bytes=len(body))

    def _request(
        self,
        method: Method,
        path: str,
        enclosed: bytes = b"",
        digest: bytes = _EMPTY,
        digest_field: DigestField = DigestField.CONTENT,
        follows: AsyncIterator[bytes] | None = None,
        follows_bytes: int = 0,
    ) -> PeerRequest:
        """A signed request in its envelope; ``follows`` is a body that is sealed already."""
        server, url = self._server, self._peer_url + paths.PEER_SEALED
        between = Correspondence(server.keys.key_id, server.peer.key_id, secrets.token_urlsafe(24))
        asked = EnclosedRequest(
            method=method,
            target=path,
            body_digest=digest.hex(),
            digest_field=digest_field,
            enclosed_bytes=len(enclosed),
            body_bytes=len(enclosed) + follows_bytes,
        )
        to = server.sealing_key_of(server.peer.name)
        envelope, signed = sign_enclosed(asked, enclosed, to, between, url, server.keys.signing, int(server.clock()))
        length = ("content-length", str(len(envelope) + follows_bytes))
        headers = [("accept-encoding", "identity"), ("content-type", SEALED_TYPE), length, *signed]
        request = self._client.build_request("POST", url, content=_content(envelope, follows), headers=headers)
        return PeerRequest(request, between, dict(signed)["Signature"])

    async def _sent(self, request: PeerRequest, kind: str, most_bytes: int, sent_bytes: int = 0) -> bytes:
        request.request.extensions["purpose"] = kind
        try:
            async with asyncio.timeout(self._longest_s(sent_bytes)) as deadline:
                async with self._answered(request, most_bytes) as pieces:
                    deadline.reschedule(asyncio.get_running_loop().time() + self._longest_s(most_bytes))
                    body = b"".join([piece async for piece in pieces])
        except TimeoutError as error:
            raise self._unreachable(error) from error
        self._count("in", kind, len(body))
        return body

    def _longest_s(self, moved_bytes: int) -> float:
        """A request and the answer's head, or its body, take no longer: a peer that trickles is out of reach."""
        return self._server.settings.limits.peer_timeout_s + moved_bytes / _LEAST_BYTES_PER_S

    @asynccontextmanager
    async def _answered(self, request: PeerRequest, most_bytes: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request; its body as it arrives. Raises: PeerUnreachable; what the peer answered with"""
        try:
            response = await self._client.send(request.request, stream=True)
            self._saw(response)
            try:
                status, body = await peer_answer(self._server, request, response, most_bytes)
                if status >= _FIRST_ERROR:
                    error = error_from(b"".join([piece async for piece in body]), status)
                    if isinstance(error, ShareAltered):
                        raise AlteredAtPeer(error.detail)
                    if isinstance(error, HistoryUnknown):
                        self._server.history.compared = False
                    raise error
                yield body
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _saw(self, response: httpx.Response) -> None:
        """Note the Date header, for people alone: nobody signed it, and it is up to two seconds old."""
        its_time_s: float | None = None
        with suppress(ValueError, OverflowError, TypeError):
            its_time_s = parsedate_to_datetime(response.headers.get("date", "")[:64]).timestamp() + _DATE_AGE_S
        self._server.recent.peer.saw(self._server.clock(), its_time_s)

    def _count(self, direction: str, kind: str, size: int) -> None:
        self._server.metrics.peer_bytes.labels(direction, kind).inc(size)

    def _unreachable(self, error: Exception) -> PeerUnreachable:
        why = why_unreachable(error)
        return PeerUnreachable(f"the peer at {self._peer_url} is out of reach: {why}. It is tried again")


def _over_tls(ca: Path | None) -> httpx.AsyncHTTPTransport:
    context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    return httpx.AsyncHTTPTransport(verify=context, limits=_CONNECTIONS, trust_env=False)


async def _content(envelope: bytes, follows: AsyncIterator[bytes] | None) -> AsyncIterator[bytes]:
    yield envelope
    if follows is not None:
        async for piece in follows:
            yield piece


def _next_piece(chunks: Iterator[bytes]) -> bytes:
    """About a megabyte: every piece costs a change of threads."""
    return b"".join(islice(chunks, _PIECE_BYTES // CHUNK_BYTES))
