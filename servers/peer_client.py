"""Side A's calls to side B: signed, over one kept connection, errors turned back into the project's own."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import ssl
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Final

import httpx

from protocol.errors import PeerUnreachable
from protocol.wire.commitment import head_digest
from protocol.wire.sealing import (
    CHUNK_BYTES,
    CONTENT_KEY_BYTES,
    encrypt_body,
    sealed_head,
    sealed_message_length,
)
from protocol.wire.signing import DigestField, sign_request
from servers.context import Server
from servers.problems import error_from

_CONNECT_TIMEOUT_S: Final = 5.0
_PIECE_BYTES: Final = 2**20
_EMPTY: Final = hashlib.sha256(b"").digest()


class PeerClient:
    """Every method raises PeerUnreachable, or the error that the peer answered with."""

    def __init__(self, server: Server) -> None:
        self._server = server
        ca = server.settings.peer_ca
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        timeout = httpx.Timeout(server.settings.limits.peer_timeout_s, connect=_CONNECT_TIMEOUT_S)
        self._client = httpx.AsyncClient(verify=context, timeout=timeout, trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str, kind: str) -> bytes:
        return await self._whole("GET", path, b"", kind)

    async def post(self, path: str, body: bytes, kind: str) -> bytes:
        return await self._whole("POST", path, body, kind)

    async def put(self, path: str, body: bytes, kind: str) -> bytes:
        return await self._whole("PUT", path, body, kind)

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
        return await self._sent(
            self._client.build_request("PUT", self._url(path), content=body(), headers=headers), kind
        )

    async def stream(self, path: str, kind: str) -> AsyncIterator[bytes]:
        """The answer's body, piece by piece."""
        headers = self._headers("GET", path, _EMPTY)
        try:
            async with self._client.stream("GET", self._url(path), headers=headers) as response:
                if response.is_error:
                    raise error_from(await response.aread(), response.status_code)
                async for piece in response.aiter_bytes(_PIECE_BYTES):
                    self._count("in", kind, len(piece))
                    yield piece
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    async def reachable(self) -> None:
        """Return if the peer's /healthz answers."""
        try:
            response = await self._client.get(self._url("/healthz"))
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if response.is_error:
            raise PeerUnreachable(f"the peer's /healthz answers with status {response.status_code}")

    async def _whole(self, method: str, path: str, body: bytes, kind: str) -> bytes:
        headers = self._headers(method, path, hashlib.sha256(body).digest())
        self._count("out", kind, len(body))
        return await self._sent(
            self._client.build_request(method, self._url(path), content=body, headers=headers), kind
        )

    async def _sent(self, request: httpx.Request, kind: str) -> bytes:
        try:
            response = await self._client.send(request)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if response.is_error:
            raise error_from(response.content, response.status_code)
        self._count("in", kind, len(response.content))
        return response.content

    def _headers(
        self, method: str, path: str, digest: bytes, field: DigestField = DigestField.CONTENT
    ) -> tuple[tuple[str, str], ...]:
        created = int(self._server.clock())
        nonce = secrets.token_urlsafe(24)
        signing = self._server.keys.signing
        return sign_request(
            method,
            self._url(path),
            digest,
            signing,
            self._server.name,
            created=created,
            nonce=nonce,
            digest_field=field,
        )

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
