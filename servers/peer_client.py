"""Side A's calls to side B: signed, over one kept connection, errors turned back into the project's own."""

from __future__ import annotations

import hashlib
import secrets
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import httpx

from protocol.errors import PeerUnreachable
from protocol.wire.signing import sign_request
from servers.context import Server
from servers.problems import error_from

_CONNECT_TIMEOUT_S: Final = 5.0
_PIECE_BYTES: Final = 2**18
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

    async def put_file(self, path: str, file: Path, digest: bytes, kind: str) -> bytes:
        """Send a file whose SHA-256 is known."""
        headers = (*self._headers("PUT", path, digest), ("content-length", str(file.stat().st_size)))

        async def pieces() -> AsyncIterator[bytes]:
            with file.open("rb") as opened:
                while piece := opened.read(_PIECE_BYTES):
                    yield piece

        self._count("out", kind, file.stat().st_size)
        return await self._sent(
            self._client.build_request("PUT", self._url(path), content=pieces(), headers=headers), kind
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

    def _headers(self, method: str, path: str, digest: bytes) -> tuple[tuple[str, str], ...]:
        created = int(self._server.clock())
        nonce = secrets.token_urlsafe(24)
        signing = self._server.keys.signing
        return sign_request(method, self._url(path), digest, signing, self._server.name, created=created, nonce=nonce)

    def _url(self, path: str) -> str:
        return self._server.settings.peer_url + path

    def _count(self, direction: str, kind: str, size: int) -> None:
        self._server.metrics.peer_bytes.labels(direction, kind).inc(size)

    def _unreachable(self, error: Exception) -> PeerUnreachable:
        return PeerUnreachable(
            f"the peer at {self._server.settings.peer_url} is out of reach ({type(error).__name__}); it is tried again"
        )


def chunks_with_digest(pieces: Iterator[bytes], file: Path) -> bytes:
    """Write ``pieces`` to ``file``; -> their SHA-256, which a signed request needs beforehand."""
    digest = hashlib.sha256()
    with file.open("wb") as opened:
        for piece in pieces:
            digest.update(piece)
            opened.write(piece)
    return digest.digest()
