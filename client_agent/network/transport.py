"""HTTPS with every byte counted at the socket (for the egress ledger)."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import httpcore
import httpx

from client_agent.network.ledger import CONNECTION, HANDSHAKE, Ledger, LedgerEntry
from client_agent.network.sockets.connection import Pool
from client_agent.network.sockets.counted import (
    BEFORE_HEAD_BYTES,
    HEAD_BYTES,
    Account,
    CountingBackend,
    Meter,
    head_too_large,
)
from client_agent.network.sockets.pace import NO_CAP, Paces
from host.network import WebProxy
from protocol.errors import ConfigurationError

_HEADERS_TOO_LARGE: Final = 431
_TLS_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def tls_context(ca: Path, minimum: str = "1.2") -> ssl.SSLContext:
    """A client context that trusts exactly the certificates in ``ca``; TLS 1.3 where the server speaks it."""
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"key 'ca': {ca} cannot be read as PEM certificates: {error}") from None
    context.minimum_version = _TLS_VERSIONS[minimum]
    return context


class CountingTransport(httpx.BaseTransport):
    """HTTP/1.1 over counted connections to one server; writes the ledger.

    A request's ``extensions["purpose"]`` becomes its entry's purpose, ``extensions["study"]`` its entry's study.
    """

    def __init__(
        self,
        server: str,
        context: ssl.SSLContext,
        ledger: Ledger,
        clock: Callable[[], float] = time.time,
        proxy: WebProxy | None = None,
        paces: Paces = NO_CAP,
    ) -> None:
        self._server = server
        self._ledger = ledger
        self._clock = clock
        self._meter = Meter()
        self._tls_version: str | None = None
        backend = CountingBackend(self._meter, self._handshake_done, proxy, paces)
        self._pool = Pool(context, backend, most=16, kept_s=30.0)

    @property
    def tls_version(self) -> str | None:
        """The version of the last handshake, for example ``TLSv1.3``."""
        return self._tls_version

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._ledger.require_room()
        exchange = _Exchange(request, Account(BEFORE_HEAD_BYTES), self._finish)
        inner = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=exchange.counted_body(),
            extensions={k: v for k, v in request.extensions.items() if k == "timeout"},
        )
        try:
            with self._meter.charging(exchange.account), _as_httpx(request):
                response = self._pool.handle_request(inner)
                _require_small_head(response)
        except BaseException:
            exchange.finish()
            raise
        exchange.account.most_bytes = None
        exchange.status = response.status
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_CountedBody(response, exchange, self._meter),
        )

    def close(self) -> None:
        self._pool.close()
        left = self._meter.unclaimed
        if left.sent_bytes or left.received_bytes:
            self._write("CLOSE", "", CONNECTION, None, (0, 0), left)
            self._meter.unclaimed = Account()

    def _handshake_done(self, account: Account, version: str | None) -> None:
        self._tls_version = version or self._tls_version
        self._write("TLS", "", HANDSHAKE, None, (0, 0), account)

    def _finish(self, exchange: _Exchange) -> None:
        request = exchange.request
        purpose = str(request.extensions.get("purpose", "request"))
        bodies = (exchange.body_sent_bytes, exchange.body_received_bytes)
        study = request.extensions.get("study")
        self._write(request.method, request.url.path, purpose, exchange.status, bodies, exchange.account, study)

    def _write(
        self,
        method: str,
        path: str,
        purpose: str,
        status: int | None,
        bodies: tuple[int, int],
        account: Account,
        study: str | None = None,
    ) -> None:
        self._ledger.append(
            LedgerEntry(
                time_s=self._clock(),
                server=self._server,
                method=method,
                path=path,
                purpose=purpose,
                status=status,
                body_sent_bytes=bodies[0],
                body_received_bytes=bodies[1],
                socket_sent_bytes=account.sent_bytes,
                socket_received_bytes=account.received_bytes,
                tls_version=self._tls_version,
                study=study,
            )
        )


class _Exchange:
    """The bytes that one request has moved so far; written to the ledger once."""

    def __init__(self, request: httpx.Request, account: Account, write: Callable[[_Exchange], None]) -> None:
        self.request = request
        self.account = account
        self.status: int | None = None
        self.body_sent_bytes = 0
        self.body_received_bytes = 0
        self._write = write
        self._open = True

    def counted_body(self) -> Iterator[bytes]:
        stream = self.request.stream
        if isinstance(stream, httpx.SyncByteStream):
            for piece in stream:
                self.body_sent_bytes += len(piece)
                yield piece

    def finish(self) -> None:
        if self._open:
            self._open = False
            self._write(self)


class _CountedBody(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response, exchange: _Exchange, meter: Meter) -> None:
        self._response = response
        self._exchange = exchange
        self._meter = meter

    def __iter__(self) -> Iterator[bytes]:
        pieces = iter(self._response.iter_stream())
        while True:
            with self._meter.charging(self._exchange.account), _as_httpx(self._exchange.request):
                piece = next(pieces, None)
            if piece is None:
                return
            self._exchange.body_received_bytes += len(piece)
            yield piece

    def close(self) -> None:
        with self._meter.charging(self._exchange.account):
            self._response.close()
        self._exchange.finish()


def _require_small_head(response: httpcore.Response) -> None:
    """Raises: TooLarge"""
    if sum(len(name) + len(value) for name, value in response.headers) > HEAD_BYTES:
        response.close()
        raise head_too_large()


@contextlib.contextmanager
def _as_httpx(request: httpx.Request) -> Iterator[None]:
    """httpcore's errors as the ones httpx users know."""
    try:
        yield
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        raise httpx.ConnectError(str(error), request=request) from error
    except httpcore.TimeoutException as error:
        raise httpx.ReadTimeout(str(error), request=request) from error
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        if getattr(error.__context__, "error_status_hint", None) == _HEADERS_TOO_LARGE:  # h11's, behind httpcore's
            raise head_too_large() from None
        raise httpx.NetworkError(str(error), request=request) from error
