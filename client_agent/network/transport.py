"""HTTPS with every byte counted at the socket (for the egress ledger).

TLS runs over memory buffers (``ssl.MemoryBIO``), so that the bytes handed to and taken from the socket are ours to
count. Each request and each handshake has its own account; the thread that does the work charges it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import httpcore
import httpx

from client_agent.network.ledger import CONNECTION, HANDSHAKE, Ledger, LedgerEntry
from host.web_proxy import WebProxy, open_tunnel
from protocol.errors import ConfigurationError, TooLarge

T = TypeVar("T")
_READ_BYTES: Final = 2**18
_HEAD_BYTES: Final = 2**16
_BEFORE_HEAD_BYTES: Final = 2**19
"""What may arrive before an answer's head is complete: interim answers too, and the body's first read behind it."""
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


class Account:
    """Socket bytes of one request or handshake; with ``most_bytes`` no more than those are received."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self.most_bytes = most_bytes

    def received(self, count: int) -> None:
        """Raises: TooLarge"""
        self.received_bytes += count
        if self.most_bytes is not None and self.received_bytes > self.most_bytes:
            raise _head_too_large()


class Meter:
    """Charges socket bytes to the account that this thread works for."""

    def __init__(self) -> None:
        self._local = threading.local()
        self.unclaimed = Account()

    @contextlib.contextmanager
    def charging(self, account: Account) -> Iterator[None]:
        before = self._current()
        self._local.account = account
        try:
            yield
        finally:
            self._local.account = before

    def sent(self, count: int) -> None:
        self._current().sent_bytes += count

    def received(self, count: int) -> None:
        self._current().received(count)

    def _current(self) -> Account:
        account: Account = getattr(self._local, "account", self.unclaimed)
        return account


class CountedStream(httpcore.NetworkStream):
    """A socket, plain or under TLS, whose bytes are counted as they cross it."""

    def __init__(self, sock: socket.socket, meter: Meter, on_handshake: Callable[[Account, str | None], None]) -> None:
        self._sock = sock
        self._meter = meter
        self._on_handshake = on_handshake
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _mapped(httpcore.ReadTimeout, httpcore.ReadError):
            self._sock.settimeout(timeout)
            tls = self._tls
            if tls is None:
                return self._receive(max_bytes)
            try:
                first = self._pump(lambda: tls.read(_READ_BYTES))
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            return _with_records_at_hand(tls, first)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _mapped(httpcore.WriteTimeout, httpcore.WriteError):
            self._sock.settimeout(timeout)
            tls = self._tls
            if tls is None:
                self._send(buffer)
                return
            view = memoryview(buffer)
            while view:
                piece = view[:_READ_BYTES]
                view = view[self._pump(partial(tls.write, piece)) :]

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes a thread that waits in recv
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        account = Account()
        tls = ssl_context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        try:
            with _mapped(httpcore.ConnectTimeout, httpcore.ConnectError), self._meter.charging(account):
                self._sock.settimeout(timeout)
                self._pump(tls.do_handshake)
                self._tls = tls
        except BaseException:
            self.close()
            raise
        finally:
            self._on_handshake(account, tls.version())
        return self

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - httpcore's signature
        if info == "ssl_object":
            return self._tls
        if info == "socket":
            return self._sock
        if info == "is_readable":
            return self._readable()
        return None

    def _readable(self) -> bool:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def _pump(self, operation: Callable[[], T]) -> T:
        """Run a TLS operation, moving bytes between its buffers and the socket until it is done."""
        while True:
            try:
                result = operation()
            except ssl.SSLWantReadError:
                self._send(self._outgoing.read())
                data = self._receive(_READ_BYTES)
                self._incoming.write(data) if data else self._incoming.write_eof()
            except ssl.SSLError:
                with contextlib.suppress(OSError):  # the alert that tells the server why
                    self._send(self._outgoing.read())
                raise
            else:
                self._send(self._outgoing.read())
                return result

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = self._sock.send(view)
            self._meter.sent(count)
            view = view[count:]

    def _receive(self, max_bytes: int) -> bytes:
        data = self._sock.recv(max_bytes)
        self._meter.received(len(data))
        return data


def _with_records_at_hand(tls: ssl.SSLObject, first: bytes) -> bytes:
    """A TLS record holds at most 16 kB: take all that have arrived, since every piece costs a walk through HTTP."""
    pieces, size = [first], len(first)
    while size < _READ_BYTES and pieces[-1]:
        try:
            pieces.append(tls.read(_READ_BYTES - size))
        except ssl.SSLError:  # nothing more yet, or the end or an error, which the next read meets again
            break
        size += len(pieces[-1])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _head_too_large() -> TooLarge:
    return TooLarge(
        f"the server's answer has a head of more than the {_HEAD_BYTES} bytes that are allowed, or none within "
        f"{_BEFORE_HEAD_BYTES} bytes; ask its operator, or whoever runs a proxy on the way"
    )


@contextlib.contextmanager
def _mapped(timeout: type[Exception], failure: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise timeout(str(error)) from error
    except OSError as error:
        raise failure(str(error)) from error


class CountingBackend(httpcore.NetworkBackend):
    """Opens counted connections for httpcore's pool."""

    def __init__(
        self, meter: Meter, on_handshake: Callable[[Account, str | None], None], proxy: WebProxy | None = None
    ) -> None:
        self._meter = meter
        self._on_handshake = on_handshake
        self._proxy = proxy

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        with _mapped(httpcore.ConnectTimeout, httpcore.ConnectError):
            if self._proxy is None:
                sock = socket.create_connection((host, port), timeout)
            else:
                sock = open_tunnel(self._proxy, (host, port), timeout, self._tunnelled)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return CountedStream(sock, self._meter, self._on_handshake)

    def _tunnelled(self, sent: int, received: int) -> None:
        self._meter.sent(sent)
        self._meter.received(received)


class CountingTransport(httpx.BaseTransport):
    """HTTP/1.1 over counted connections to one server; writes the ledger.

    A request's ``extensions["purpose"]`` becomes its entry's purpose.
    """

    def __init__(
        self,
        server: str,
        context: ssl.SSLContext,
        ledger: Ledger,
        clock: Callable[[], float] = time.time,
        proxy: WebProxy | None = None,
    ) -> None:
        self._server = server
        self._ledger = ledger
        self._clock = clock
        self._meter = Meter()
        self._tls_version: str | None = None
        backend = CountingBackend(self._meter, self._handshake_done, proxy)
        self._pool = httpcore.ConnectionPool(
            ssl_context=context, max_connections=16, keepalive_expiry=30.0, network_backend=backend
        )

    @property
    def tls_version(self) -> str | None:
        """What the last handshake agreed on, for example ``TLSv1.3``."""
        return self._tls_version

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(request, Account(_BEFORE_HEAD_BYTES), self._finish)
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
        self._write(request.method, request.url.path, purpose, exchange.status, bodies, exchange.account)

    def _write(
        self, method: str, path: str, purpose: str, status: int | None, bodies: tuple[int, int], account: Account
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
            )
        )


class _Exchange:
    """What one request has moved so far; written to the ledger once."""

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
    if sum(len(name) + len(value) for name, value in response.headers) > _HEAD_BYTES:
        response.close()
        raise _head_too_large()


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
            raise _head_too_large() from None
        raise httpx.NetworkError(str(error), request=request) from error
