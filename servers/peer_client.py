"""Side A's calls to side B: signed, over one kept connection, errors turned back into the project's own.

B is not trusted with A's memory or time: every answer has a bound that the caller states (servers/peer_answer.py) and
a least speed.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final

import httpx

from protocol.errors import PeerUnreachable
from protocol.wire.commitment import head_digest
from protocol.wire.messages import MAX_CONTROL_BYTES
from protocol.wire.sealing import (
    CHUNK_BYTES,
    CONTENT_KEY_BYTES,
    encrypt_body,
    sealed_head,
    sealed_message_length,
)
from protocol.wire.signing import DigestField, sign_request
from servers.context import Server
from servers.peer_answer import PROBLEM_BYTES, answer_pieces, no_cookies, problem_bytes
from servers.problems import error_from

_CONNECT_TIMEOUT_S: Final = 5.0
_PIECE_BYTES: Final = 2**20
_LEAST_BYTES_PER_S: Final = 2**16
_CONNECTIONS: Final = httpx.Limits(max_connections=48, max_keepalive_connections=16)
"""Fewer than the peer allows one address."""
_EMPTY: Final = hashlib.sha256(b"").digest()


class PeerClient:
    """Every method raises PeerUnreachable, or the error that the peer answered with."""

    def __init__(self, server: Server) -> None:
        self._server = server
        ca = server.settings.peer_ca
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        timeout = httpx.Timeout(server.settings.limits.peer_timeout_s, connect=_CONNECT_TIMEOUT_S)
        self._client = httpx.AsyncClient(
            verify=context, timeout=timeout, limits=_CONNECTIONS, trust_env=False, cookies=no_cookies()
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str, kind: str) -> bytes:
        return await self._whole("GET", path, b"", kind, MAX_CONTROL_BYTES)

    async def post(self, path: str, body: bytes, kind: str, most_bytes: int = MAX_CONTROL_BYTES) -> bytes:
        """The answer, of at most so many bytes."""
        return await self._whole("POST", path, body, kind, most_bytes)

    async def put(self, path: str, body: bytes, kind: str) -> bytes:
        return await self._whole("PUT", path, body, kind, MAX_CONTROL_BYTES)

    async def put_sealed(
        self, path: str, header: bytes, pieces: Iterator[bytes], plain_bytes: int, secret: bytes, kind: str
    ) -> bytes:
        """Send a body that is made while it is sent, sealed to the peer: the signature covers the head.

        ``secret`` is a content key and a salt, used for this message alone.
        """
        content_key, salt = secret[:CONTENT_KEY_BYTES], secret[CONTENT_KEY_BYTES:]
        head = sealed_head(header, self._server.sealing_key_of(self._server.peer.name), content_key, salt)
        length = sealed_message_length(len(header), plain_bytes)
        signed = self._headers("PUT", path, head_digest(head), DigestField.SEALED_HEAD)
        chunks = encrypt_body(content_key, pieces)

        async def body() -> AsyncIterator[bytes]:
            yield head
            while piece := await asyncio.to_thread(_next_piece, chunks):
                yield piece

        self._count("out", kind, length)
        headers = (*signed, ("content-length", str(length)))
        request = self._client.build_request("PUT", self._url(path), content=body(), headers=headers)
        return await self._sent(request, kind, MAX_CONTROL_BYTES, sent_bytes=length)

    async def stream(self, path: str, kind: str, most_bytes: int) -> AsyncGenerator[bytes]:
        """The answer's body in pieces of about a megabyte, at most ``most_bytes`` in all."""
        headers = self._headers("GET", path, _EMPTY)
        request = self._client.build_request("GET", self._url(path), headers=headers)
        async with self._answered(request, most_bytes) as pieces:
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
        await self._sent(self._client.build_request("GET", self._url("/healthz")), "health", PROBLEM_BYTES)

    async def _whole(self, method: str, path: str, body: bytes, kind: str, most_bytes: int) -> bytes:
        headers = self._headers(method, path, hashlib.sha256(body).digest())
        self._count("out", kind, len(body))
        request = self._client.build_request(method, self._url(path), content=body, headers=headers)
        return await self._sent(request, kind, most_bytes, sent_bytes=len(body))

    async def _sent(self, request: httpx.Request, kind: str, most_bytes: int, sent_bytes: int = 0) -> bytes:
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
    async def _answered(self, request: httpx.Request, most_bytes: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request; its body as it arrives. Raises: PeerUnreachable, TooLarge; what the peer answered with"""
        try:
            response = await self._client.send(request, stream=True)
            try:
                if not response.is_success:
                    raise error_from(await problem_bytes(response), response.status_code)
                yield answer_pieces(response, most_bytes)
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _headers(
        self, method: str, path: str, digest: bytes, field: DigestField = DigestField.CONTENT
    ) -> tuple[tuple[str, str], ...]:
        created = int(self._server.clock())
        nonce = secrets.token_urlsafe(24)
        signing = self._server.keys.signing
        signed = sign_request(
            method,
            self._url(path),
            digest,
            signing,
            self._server.name,
            created=created,
            nonce=nonce,
            digest_field=field,
        )
        return ("accept-encoding", "identity"), *signed

    def _url(self, path: str) -> str:
        return self._server.settings.peer_url + path

    def _count(self, direction: str, kind: str, size: int) -> None:
        self._server.metrics.peer_bytes.labels(direction, kind).inc(size)

    def _unreachable(self, error: Exception) -> PeerUnreachable:
        return PeerUnreachable(
            f"the peer at {self._server.settings.peer_url} is out of reach ({type(error).__name__}); it is tried again"
        )


def _next_piece(chunks: Iterator[bytes]) -> bytes:
    """About a megabyte: every piece costs a change of threads."""
    return b"".join(islice(chunks, _PIECE_BYTES // CHUNK_BYTES))
