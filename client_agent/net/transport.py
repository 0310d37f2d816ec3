"""HTTPS with every byte counted at the socket (for the egress ledger).

One HTTP/1.1 connection of httpcore's pool: h11 writes and reads the heads, a long answer's body goes past it. httpcore
hands every piece of a body to h11 and takes it back, which copies each byte five times over: half of what receiving a
large sum cost. Where a head states the body's length there is nothing in the body for h11 to find.

Connections whose bytes are counted as they cross the socket, TLS included. TLS runs over memory buffers
(``ssl.MemoryBIO``), so that the bytes handed to and taken from the socket are ours to count. Each request and each
handshake has its own account; the thread that does the work charges it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import h11
import httpcore
import httpx

from client_agent.net.ledger import CONNECTION, HANDSHAKE, Ledger, LedgerEntry
from host.network.web_proxy import WebProxy, open_tunnel
from protocol.errors import ConfigurationError, TooLarge

_HEAD_BYTES: Final = 100 * 2**10
"""What h11 holds of a head that is not complete yet, as in httpcore; whoever counts bytes allows less."""
_BODY_READ_BYTES: Final = 2**16
_LONG_BYTES: Final = 2**16
_AT_ONCE_BYTES: Final = 2**14
"""What is held until more of a request comes: as much as a record of TLS takes."""
_OK: Final = 200


class _State(Enum):
    NEW = auto()
    ACTIVE = auto()
    IDLE = auto()
    CLOSED = auto()


class Pool(httpcore.ConnectionPool):
    """httpcore's pool of such connections."""

    def __init__(
        self,
        context: ssl.SSLContext,
        backend: httpcore.NetworkBackend,
        *,
        most: int,
        kept_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most ``most`` at a time; one that nobody needed for ``kept_s`` serves no further request."""
        super().__init__(ssl_context=context, max_connections=most, keepalive_expiry=kept_s, network_backend=backend)
        self._monotonic = monotonic
        self._made_with = context, backend, kept_s

    def create_connection(self, origin: httpcore.Origin) -> httpcore.ConnectionInterface:
        return Connection(origin, *self._made_with, self._monotonic)


class Connection(httpcore.ConnectionInterface):
    """One request at a time; made when the first one comes."""

    def __init__(
        self,
        origin: httpcore.Origin,
        context: ssl.SSLContext,
        backend: httpcore.NetworkBackend,
        kept_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._origin = origin
        self._context = context
        self._backend = backend
        self._kept_s = kept_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._state = _State.NEW
        self._stream: httpcore.NetworkStream | None = None
        self._expires_s = 0.0
        self._http = _heads()
        self._passed_whole = False
        """Whether a body that went past h11 came to its end, with nothing behind it."""
        self._ended_there = False

    # --- what the pool asks ---

    def can_handle_request(self, origin: httpcore.Origin) -> bool:
        return origin == self._origin

    def is_available(self) -> bool:
        return self._state is _State.IDLE

    def is_idle(self) -> bool:
        return self._state is _State.IDLE

    def is_closed(self) -> bool:
        return self._state is _State.CLOSED

    def has_expired(self) -> bool:
        """Return whether it waited too long, or the server has ended it: nothing else can be there to read."""
        if self._state is not _State.IDLE or self._stream is None:
            return False
        return self._monotonic() > self._expires_s or bool(self._stream.get_extra_info("is_readable"))

    def info(self) -> str:
        return f"{self._origin!s}, HTTP/1.1, {self._state.name}"

    def close(self) -> None:
        """Any thread may; one that waits for the other end is woken."""
        self._state = _State.CLOSED
        if self._stream is not None:
            self._stream.close()

    # --- a request ---

    def handle_request(self, request: httpcore.Request) -> httpcore.Response:
        """Raises: httpcore's errors; ConnectionNotAvailable, where another request was quicker"""
        with self._lock:
            if self._state not in (_State.NEW, _State.IDLE):
                raise httpcore.ConnectionNotAvailable
            self._state = _State.ACTIVE
        waits = request.extensions.get("timeout", {})
        try:
            stream = self._connected(waits.get("connect"))
            self._http, self._passed_whole = _heads(), False
            with contextlib.suppress(httpcore.WriteError):  # a server may answer and close before it has all
                self._send(stream, request, waits.get("write"))
            head = self._head(stream, waits.get("read"))
        except BaseException:
            self.close()
            raise
        return httpcore.Response(
            head.status_code,
            headers=head.headers.raw_items(),
            content=_Body(self._pieces(stream, head, request, waits.get("read")), self._ended),
        )

    def _connected(self, within_s: float | None) -> httpcore.NetworkStream:
        if self._stream is None:
            host = self._origin.host.decode("ascii")
            stream = self._backend.connect_tcp(host, self._origin.port, within_s)
            if self._origin.scheme == b"https":
                self._context.set_alpn_protocols(["http/1.1"])
                stream = stream.start_tls(self._context, host, within_s)
            self._stream = stream
            if self.is_closed():  # meanwhile, with the whole pool
                raise httpcore.ConnectError("the connection was closed while it was made")
        return self._stream

    def _send(self, stream: httpcore.NetworkStream, request: httpcore.Request, within_s: float | None) -> None:
        """Head and body of a small request go in one piece, and so in one record of TLS."""
        held = b""
        try:
            for event in _events(request):
                data = self._http.send(event) or b""
                if held and len(held) + len(data) > _AT_ONCE_BYTES:
                    stream.write(held, within_s)
                    held = b""
                if len(data) < _AT_ONCE_BYTES:
                    held += data
                else:
                    stream.write(data, within_s)
            if held:
                stream.write(held, within_s)
        except h11.LocalProtocolError as error:
            raise httpcore.LocalProtocolError(str(error)) from error

    # --- its answer ---

    def _head(self, stream: httpcore.NetworkStream, within_s: float | None) -> h11.Response:
        while True:
            event = self._event(stream, within_s)
            if isinstance(event, h11.Response):
                return event

    def _event(self, stream: httpcore.NetworkStream, within_s: float | None) -> Any:  # noqa: ANN401 - h11's events
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise httpcore.RemoteProtocolError(str(error)) from error
            if event is not h11.NEED_DATA:
                return event
            data = stream.read(_BODY_READ_BYTES, within_s)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise httpcore.RemoteProtocolError("the server ended the connection without an answer")
            self._ended_there = not data
            self._http.receive_data(data)

    def _pieces(
        self, stream: httpcore.NetworkStream, head: h11.Response, request: httpcore.Request, within_s: float | None
    ) -> Iterator[bytes]:
        length = _stated_bytes(head) if request.method != b"HEAD" else None
        if length is not None and length >= _LONG_BYTES:
            yield from self._past_h11(stream, length, within_s)
            return
        while isinstance(event := self._event(stream, within_s), h11.Data):
            yield bytes(event.data)

    def _past_h11(self, stream: httpcore.NetworkStream, length: int, within_s: float | None) -> Iterator[bytes]:
        held, _ = self._http.trailing_data
        left = length - len(held)
        yield held[:length]
        while left > 0:
            piece = stream.read(_BODY_READ_BYTES, within_s)
            if not piece:
                raise httpcore.RemoteProtocolError(
                    f"the server ended the connection {left} bytes before the end of its answer"
                )
            left -= len(piece)
            yield piece if left >= 0 else piece[:left]
        self._passed_whole = left == 0

    def _ended(self) -> None:
        """Nobody wants more of the answer: the next request may come, if this one and its answer went to their ends."""
        behind, _ = self._http.trailing_data
        whole = self._passed_whole or (self._http.their_state is h11.DONE and not behind)
        with self._lock:
            again = whole and not self._ended_there and self._http.our_state is h11.DONE
            if self._state is _State.ACTIVE and again:
                self._expires_s = self._monotonic() + self._kept_s
                self._state = _State.IDLE
                return
        self.close()


class _Body:
    """An answer's body as the pool hands it on; ended once, also where taking it failed."""

    def __init__(self, pieces: Iterator[bytes], end: Callable[[], None]) -> None:
        self._pieces = pieces
        self._end = end
        self._open = True

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._open:
            self._open = False
            self._end()


def _events(request: httpcore.Request) -> Iterator[h11.Event]:
    yield h11.Request(method=request.method, target=request.url.target, headers=request.headers)
    for piece in cast("Iterable[bytes]", request.stream):
        yield h11.Data(data=piece)
    yield h11.EndOfMessage()


def _heads() -> h11.Connection:
    return h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)


def _stated_bytes(head: h11.Response) -> int | None:
    """The length of a body that nothing but its length delimits; h11 has seen to it that there is one number."""
    if head.status_code != _OK or any(name == b"transfer-encoding" for name, _ in head.headers):
        return None
    return next((int(value) for name, value in head.headers if name == b"content-length"), None)


PACED_BYTES: Final = 2**14
"""How many bytes at most cross a capped socket at once, so that a wait is short."""
_BURST_S: Final = 0.25


class Pace:
    """A bucket of tokens, one a byte; who takes more than there are waits until they have come.

    After a quiet time a quarter of a second's worth is there at once. Safe to use from several threads.
    """

    def __init__(
        self,
        bytes_per_s: int,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = threading.Lock()
        self._paid_until_s = monotonic() - _BURST_S

    def take(self, count: int) -> None:
        """Take bytes that have just crossed; returns when they are paid for."""
        with self._lock:
            now_s = self._monotonic()
            self._paid_until_s = max(self._paid_until_s, now_s - _BURST_S) + count / self._bytes_per_s
            wait_s = self._paid_until_s - now_s
        if wait_s > 0:
            self._sleep(wait_s)


@dataclass(frozen=True)
class Paces:
    """Caps in both directions; None: none."""

    up: Pace | None = None
    down: Pace | None = None

    @classmethod
    def of(cls, up_bytes_per_s: int | None, down_bytes_per_s: int | None) -> Paces:
        return cls(
            None if up_bytes_per_s is None else Pace(up_bytes_per_s),
            None if down_bytes_per_s is None else Pace(down_bytes_per_s),
        )


NO_CAP: Final = Paces()


T = TypeVar("T")
HEAD_BYTES: Final = 2**16
BEFORE_HEAD_BYTES: Final = 2**19
"""What may arrive before an answer's head is complete: interim answers too, and the body's first read behind it."""
_HEAD_S: Final = 600.0
"""From the first byte on, a TLS server's tickets count, to the end of a head: longer than any long poll."""
_SOCKET_READ_BYTES: Final = 2**18


class Account:
    """Socket bytes of one request or handshake; with ``most_bytes`` no more than those are received."""

    def __init__(self, most_bytes: int | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self.most_bytes = most_bytes
        self._monotonic = monotonic
        self._first_s: float | None = None

    def received(self, count: int) -> None:
        """Raises: TooLarge; httpcore.ReadTimeout, for a head that comes byte by byte"""
        self.received_bytes += count
        if self.most_bytes is None:
            return
        if self.received_bytes > self.most_bytes:
            raise head_too_large()
        now_s = self._monotonic()
        self._first_s = now_s if self._first_s is None else self._first_s
        if now_s - self._first_s > _HEAD_S:
            raise httpcore.ReadTimeout(f"the head of the answer did not come within {_HEAD_S:.0f} s")


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

    def __init__(
        self,
        sock: socket.socket,
        meter: Meter,
        on_handshake: Callable[[Account, str | None], None],
        paces: Paces = NO_CAP,
    ) -> None:
        self._sock = sock
        self._paces = paces
        self._meter = meter
        self._on_handshake = on_handshake
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()

    @cached_property
    def _received(self) -> memoryview:
        """Bytes off the socket: one place for all, since a new one for every read costs more than what it holds."""
        return memoryview(bytearray(_SOCKET_READ_BYTES))

    @cached_property
    def _opened(self) -> memoryview:
        """Bytes out of TLS, likewise."""
        return memoryview(bytearray(_SOCKET_READ_BYTES))

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _mapped(httpcore.ReadTimeout, httpcore.ReadError):
            self._sock.settimeout(timeout)
            tls = self._tls
            if tls is None:
                return bytes(self._receive(max_bytes))
            try:
                count = self._pump(partial(_read_into, tls, self._opened))
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            return bytes(self._opened[: _records_at_hand(tls, self._opened, count)])

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _mapped(httpcore.WriteTimeout, httpcore.WriteError):
            self._sock.settimeout(timeout)
            tls = self._tls
            if tls is None:
                self._send(buffer)
                return
            view = memoryview(buffer)
            while view:
                piece = view[:_SOCKET_READ_BYTES]
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
                data = self._receive(_SOCKET_READ_BYTES)
                self._incoming.write(data) if data else self._incoming.write_eof()
            except ssl.SSLError:
                with contextlib.suppress(OSError):  # the alert that tells the server why
                    self._send(self._outgoing.read())
                raise
            else:
                self._send(self._outgoing.read())
                return result

    def _send(self, data: bytes) -> None:
        view, pace = memoryview(data), self._paces.up
        while view:
            count = self._sock.send(view if pace is None else view[:PACED_BYTES])
            self._meter.sent(count)
            view = view[count:]
            if pace is not None:
                pace.take(count)

    def _receive(self, max_bytes: int) -> memoryview:
        """Receive what has come; it is valid until the next call."""
        pace = self._paces.down
        count = self._sock.recv_into(self._received, max_bytes if pace is None else min(max_bytes, PACED_BYTES))
        self._meter.received(count)
        if pace is not None:
            pace.take(count)
        return self._received[:count]


def _read_into(tls: ssl.SSLObject, room: memoryview) -> int:
    """One record at most."""
    return cast("int", tls.read(len(room), room))


def _records_at_hand(tls: ssl.SSLObject, room: memoryview, count: int) -> int:
    """A TLS record holds at most 16 kB: take all that have arrived, since every piece costs a walk through HTTP."""
    more = count
    while more and count < len(room):
        try:
            more = _read_into(tls, room[count:])
        except ssl.SSLError:  # nothing more yet, or the end or an error, which the next read meets again
            break
        count += more
    return count


def head_too_large() -> TooLarge:
    return TooLarge(
        f"the server's answer has a head of more than the {HEAD_BYTES} bytes that are allowed, or none within "
        f"{BEFORE_HEAD_BYTES} bytes; ask its operator, or whoever runs a proxy on the way"
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
        self,
        meter: Meter,
        on_handshake: Callable[[Account, str | None], None],
        proxy: WebProxy | None = None,
        paces: Paces = NO_CAP,
    ) -> None:
        self._paces = paces
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
        return CountedStream(sock, self._meter, self._on_handshake, self._paces)

    def _tunnelled(self, sent: int, received: int) -> None:
        self._meter.sent(sent)
        self._meter.received(received)


_HEADERS_TOO_LARGE: Final = 431


def tls_context(ca: Path) -> ssl.SSLContext:
    """A client context that trusts exactly the certificates in ``ca``; TLS 1.3 where the server speaks it."""
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"key 'ca': {ca} cannot be read as PEM certificates: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # for a proxy in front that speaks no newer one
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
