"""HTTPS between a site and a server: from a request to the socket, with every byte counted for the egress ledger.

TLS runs over memory buffers (``ssl.MemoryBIO``), so that the bytes handed to and taken from the socket are ours to
count. Each request and each handshake has its own account.

h11 writes and reads the heads; a long answer's body goes past it. Through h11 each of its bytes would be copied five
times over, half of what receiving a large sum cost. Where a head states the body's length there is nothing in the body
for h11 to find.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import h11
import httpx

from client_agent.net.ledger import HANDSHAKE, Ledger, LedgerEntry
from host.network import WebProxy, open_tunnel
from protocol.errors import ConfigurationError, TooLarge

T = TypeVar("T")
HEAD_BYTES: Final = 2**16
BEFORE_HEAD_BYTES: Final = 2**19
"""The most bytes until an answer's head is complete: interim answers count, and the body's first read behind it."""
_HEAD_S: Final = 600.0
"""The time from a head's or piece's first byte, a TLS server's tickets too, to its last: longer than any long poll."""
_PATIENCE_S: Final = 120.0
_LEAST_SENT_BYTES_PER_S: Final = 2**10
"""A request of which less has left, after the first minutes, goes to a server that holds this site up."""
_HEADERS_TOO_LARGE: Final = 431
_H11_BYTES: Final = 100 * 2**10
"""The most that h11 holds of a head that is not complete; the count of bytes allows less."""
_READ_BYTES: Final = 2**16
_SOCKET_BYTES: Final = 2**18
_LONG_BYTES: Final = 2**16
_AT_ONCE_BYTES: Final = 2**14
"""The most that is held until more of a request comes: as much as a record of TLS takes."""
MOST_CONNECTIONS: Final = 16
KEPT_S: Final = 30.0
"""A connection that nobody needed for so long serves no further request."""
_OK: Final = 200
_PORTS: Final = {"http": 80, "https": 443}


def tls_context(ca: Path) -> ssl.SSLContext:
    """A client context that trusts exactly the certificates in ``ca``; TLS 1.3 where the server speaks it."""
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"key 'ca': {ca} cannot be read as PEM certificates: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # for a proxy in front that speaks no newer one
    return context


# --- caps and counts ---

PACED_BYTES: Final = 2**14
"""The most bytes that cross a capped socket at once, so that a wait is short."""
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


NO_CAP: Final = Paces()


class Account:
    """Socket bytes of one request or handshake; with ``most_bytes`` no more than those are received."""

    def __init__(self, most_bytes: int | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self.most_bytes = most_bytes
        self._monotonic = monotonic
        self._first_s: float | None = None
        self._began_s: float | None = None

    def sent(self, count: int) -> None:
        self.sent_bytes += count

    def sends(self) -> None:
        """More of a request is due. Raises: httpx.WriteTimeout, for one that is taken byte by byte"""
        now_s = self._monotonic()
        self._began_s = now_s if self._began_s is None else self._began_s
        if now_s - self._began_s > _PATIENCE_S + self.sent_bytes / _LEAST_SENT_BYTES_PER_S:
            raise httpx.WriteTimeout(f"{self.sent_bytes} bytes were taken in {now_s - self._began_s:.0f} s")

    def received(self, count: int) -> None:
        """Raises: TooLarge; httpx.ReadTimeout, for a head or a piece that comes byte by byte"""
        self.received_bytes += count
        if self.most_bytes is not None and self.received_bytes > self.most_bytes:
            raise head_too_large()
        now_s = self._monotonic()
        self._first_s = now_s if self._first_s is None else self._first_s
        if now_s - self._first_s > _HEAD_S:
            raise httpx.ReadTimeout(
                f"the head of the answer, or the next part of it, did not come within {_HEAD_S:.0f} s"
            )

    def begins(self) -> None:
        """A head or piece is whole; the next one has its own time."""
        self._first_s = None

    def tunnelled(self, sent: int, received: int) -> None:
        self.sent_bytes += sent
        self.received_bytes += received  # a proxy's answer has a deadline of its own


def head_too_large() -> TooLarge:
    return TooLarge(
        f"the server's answer has a head of more than the {HEAD_BYTES} bytes that are allowed, or none within "
        f"{BEFORE_HEAD_BYTES} bytes; ask its operator, or whoever runs a proxy on the way"
    )


# --- a socket ---


class CountedStream:
    """A socket, plain or under TLS, whose bytes are charged to ``account`` as they cross it."""

    def __init__(self, sock: socket.socket, account: Account, paces: Paces = NO_CAP) -> None:
        self.account = account
        self._sock = sock
        self._paces = paces
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._early = b""
        """The beginning of an answer that came before all of its request was taken."""

    @cached_property
    def _received(self) -> memoryview:
        """Bytes off the socket: one place for all, since a new one for every read costs more than what it holds."""
        return memoryview(bytearray(_SOCKET_BYTES))

    @cached_property
    def _opened(self) -> memoryview:
        """Bytes out of TLS, likewise."""
        return memoryview(bytearray(_SOCKET_BYTES))

    @property
    def tls_version(self) -> str | None:
        return None if self._tls is None else self._tls.version()

    @property
    def is_readable(self) -> bool:
        if self._early or self._incoming.pending or (self._tls is not None and self._tls.pending()):
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def start_tls(self, context: ssl.SSLContext, host: str, within_s: float | None) -> None:
        """Raises: httpx.ConnectError; then the socket is closed"""
        try:
            with _mapped(httpx.ConnectError, httpx.ConnectError):
                self._tls = tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
                self._sock.settimeout(within_s)
                self._pump(tls.do_handshake)
        except BaseException:
            self.close()
            raise

    def read(self, most_bytes: int, within_s: float | None) -> bytes:
        """Raises: httpx.ReadTimeout, httpx.NetworkError"""
        if self._early:
            early, self._early = self._early, b""
            return early
        with _mapped(httpx.ReadTimeout, httpx.NetworkError):
            self._sock.settimeout(within_s)
            tls = self._tls
            if tls is None:
                return bytes(self._receive(most_bytes))
            try:
                count = self._pump(partial(_read_into, tls, self._opened))
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            return bytes(self._opened[: _records_at_hand(tls, self._opened, count)])

    def write(self, data: bytes, within_s: float | None) -> None:
        """Raises: httpx.ReadTimeout; httpx.WriteError, also where the server answers and takes no more"""
        with _mapped(httpx.ReadTimeout, httpx.WriteError):
            self._sock.settimeout(within_s)
            tls = self._tls
            if tls is None:
                self._send(data, self._room_or_answer)
                return
            view = memoryview(data)
            while view:
                view = view[self._pump(partial(tls.write, view[:_SOCKET_BYTES]), self._room_or_answer) :]

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes a thread that waits in recv
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _room_or_answer(self) -> None:
        """Wait until the socket takes bytes. Raises: TimeoutError; BrokenPipeError, where an answer comes instead"""
        self.account.sends()
        within_s = self._sock.gettimeout()
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | select.POLLOUT)
        while True:
            found = poll.poll(None if within_s is None else within_s * 1000)
            if not found:
                raise TimeoutError("the server takes no more of the request")
            if found[0][1] & ~select.POLLIN:
                return
            if self._hears_early():
                raise BrokenPipeError("the server answered before it took all of the request")

    def _hears_early(self) -> bool:
        """Take what has come; under TLS it may be a ticket, which answers nothing."""
        data = self._receive(_SOCKET_BYTES)
        if self._tls is None:
            self._early += data
            return True
        self._incoming.write(data) if data else self._incoming.write_eof()
        try:
            self._early += self._opened[: _read_into(self._tls, self._opened)]
        except ssl.SSLWantReadError:
            self.account.begins()  # the answer's head has its own time, however long the request takes
            return False
        except ssl.SSLError:  # the end, or an error, which the next read meets again
            return True
        return True

    def _pump(self, operation: Callable[[], T], room: Callable[[], None] = lambda: None) -> T:
        """Run a TLS operation, moving bytes between its buffers and the socket until it is done."""
        while True:
            try:
                result = operation()
            except ssl.SSLWantReadError:
                self._send(self._outgoing.read())
                data = self._receive(_SOCKET_BYTES)
                self._incoming.write(data) if data else self._incoming.write_eof()
            except ssl.SSLError:
                with contextlib.suppress(OSError):  # the alert that tells the server why
                    self._send(self._outgoing.read())
                raise
            else:
                self._send(self._outgoing.read(), room)
                return result

    def _send(self, data: bytes, room: Callable[[], None] = lambda: None) -> None:
        view, pace = memoryview(data), self._paces.up
        while view:
            room()
            count = self._sock.send(view if pace is None else view[:PACED_BYTES])
            self.account.sent(count)
            view = view[count:]
            if pace is not None:
                pace.take(count)

    def _receive(self, most_bytes: int) -> memoryview:
        """Receive what has come; it is valid until the next call."""
        pace = self._paces.down
        count = self._sock.recv_into(self._received, most_bytes if pace is None else min(most_bytes, PACED_BYTES))
        self.account.received(count)
        if pace is not None:
            pace.take(count)
        return self._received[:count]


def _read_into(tls: ssl.SSLObject, room: memoryview) -> int:
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


@contextlib.contextmanager
def _mapped(timeout: type[httpx.TransportError], failure: type[httpx.TransportError]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise timeout(str(error)) from error
    except (OSError, UnicodeError) as error:  # a host name that is none
        raise failure(str(error)) from error


# --- HTTP ---


class Connection:
    """One HTTP/1.1 connection, for one request at a time."""

    def __init__(self, origin: tuple[str, bytes, int | None], stream: CountedStream) -> None:
        self.origin = origin
        self.stream = stream
        self.kept_until_s = 0.0
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_H11_BYTES)
        self._passed_whole = False
        """True once a body that went past h11 came to its end, with nothing behind it."""
        self._ended_there = False
        self._sent_whole = False

    def is_stale(self, now_s: float) -> bool:
        """Return whether it waited too long, or the server has ended it: nothing else can be there to read."""
        return now_s > self.kept_until_s or self.stream.is_readable

    @property
    def serves_again(self) -> bool:
        """Return whether the last request and its answer went to their ends."""
        behind, _ = self._http.trailing_data
        whole = self._passed_whole or (self._http.their_state is h11.DONE and not behind)
        return whole and self._sent_whole and not self._ended_there and self._http.our_state is h11.DONE

    def ask(self, request: httpx.Request, body: Iterator[bytes], waits_s: Mapping[str, float | None]) -> h11.Response:
        """Send a request and return the head of its answer. Raises: httpx.TransportError, TooLarge"""
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_H11_BYTES)
        self._passed_whole = self._sent_whole = False
        with contextlib.suppress(httpx.WriteError):  # a server may answer and close before it has all
            self._send(request, body, waits_s.get("write"))
            self._sent_whole = True
        while True:
            event = self._event(waits_s.get("read"))
            if isinstance(event, h11.Response):
                return event

    def pieces(self, method: str, head: h11.Response, within_s: float | None) -> Iterator[bytes]:
        """Yield the answer's body as it comes."""
        length = _stated_bytes(head) if method != "HEAD" else None
        if length is not None and length >= _LONG_BYTES:
            yield from self._past_h11(length, within_s)
            return
        while isinstance(event := self._event(within_s), h11.Data):
            yield bytes(event.data)

    def _send(self, request: httpx.Request, body: Iterator[bytes], within_s: float | None) -> None:
        """Head and body of a small request go in one piece, and so in one record of TLS."""
        held = b""
        try:
            for event in _events(request, body):
                data = self._http.send(event) or b""
                if held and len(held) + len(data) > _AT_ONCE_BYTES:
                    self.stream.write(held, within_s)
                    held = b""
                if len(data) < _AT_ONCE_BYTES:
                    held += data
                else:
                    self.stream.write(data, within_s)
            if held:
                self.stream.write(held, within_s)
        except h11.LocalProtocolError as error:
            raise httpx.NetworkError(str(error)) from error

    def _event(self, within_s: float | None) -> Any:  # noqa: ANN401 - h11's events
        while True:
            before = self._http.their_state
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                # In a body it is a chunk's extension or trailers, which no signature covers: that decides nothing.
                if before is h11.SEND_RESPONSE and error.error_status_hint == _HEADERS_TOO_LARGE:
                    raise head_too_large() from None
                raise httpx.NetworkError(str(error)) from error
            if event is not h11.NEED_DATA:
                return event
            data = self.stream.read(_READ_BYTES, within_s)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise httpx.NetworkError("the server ended the connection without an answer")
            self._ended_there = not data
            self._http.receive_data(data)

    def _past_h11(self, length: int, within_s: float | None) -> Iterator[bytes]:
        held, _ = self._http.trailing_data
        left = length - len(held)
        yield held[:length]
        while left > 0:
            piece = self.stream.read(_READ_BYTES, within_s)
            if not piece:
                raise httpx.NetworkError(f"the server ended the connection {left} bytes before the end of its answer")
            left -= len(piece)
            yield piece if left >= 0 else piece[:left]
        self._passed_whole = left == 0


def _events(request: httpx.Request, body: Iterator[bytes]) -> Iterator[h11.Event]:
    yield h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
    for piece in body:
        yield h11.Data(data=piece)
    yield h11.EndOfMessage()


def _stated_bytes(head: h11.Response) -> int | None:
    """The length of a body that nothing but its length delimits; h11 has seen to it that there is one number."""
    if head.status_code != _OK or any(name == b"transfer-encoding" for name, _ in head.headers):
        return None
    return next((int(value) for name, value in head.headers if name == b"content-length"), None)


class _Exchange(httpx.SyncByteStream):
    """One request's bytes and the body of its answer; when it is over, ``end`` hears of it, once."""

    def __init__(self, request: httpx.Request, end: Callable[[_Exchange], None]) -> None:
        self.request = request
        self.account = Account(BEFORE_HEAD_BYTES)
        self.connection: Connection | None = None
        self.status: int | None = None
        self.body_sent_bytes = 0
        self.body_received_bytes = 0
        self.answered: Iterator[bytes] = iter(())
        self._end = end
        self._open = True

    def asked(self) -> Iterator[bytes]:
        stream = self.request.stream
        if isinstance(stream, httpx.SyncByteStream):
            for piece in stream:
                self.body_sent_bytes += len(piece)
                yield piece

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self.answered:
                self.body_received_bytes += len(piece)
                yield piece
                self.account.begins()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._open:
            self._open = False
            self._end(self)


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
        *,
        most: int = MOST_CONNECTIONS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``most`` connections at a time; more requests wait for one of them."""
        context.set_alpn_protocols(["http/1.1"])
        self._server = server
        self._context = context
        self._ledger = ledger
        self._clock = clock
        self._proxy = proxy
        self._paces = paces
        self._monotonic = monotonic
        self._tls_version: str | None = None
        self._places = threading.Semaphore(most)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._opening: set[CountedStream] = set()
        self._closed = False

    @property
    def tls_version(self) -> str | None:
        """The version of the last handshake, for example ``TLSv1.3``."""
        return self._tls_version

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Raises: httpx.TransportError, TooLarge, StorageFull"""
        self._ledger.require_room()
        waits_s: Mapping[str, float | None] = request.extensions.get("timeout", {})
        if not self._places.acquire(timeout=waits_s.get("pool")):
            raise httpx.ReadTimeout("as many requests as there may be at a time are under way")
        exchange = _Exchange(request, self._ended)
        try:
            connection = exchange.connection = self._connected(request.url, exchange.account, waits_s.get("connect"))
            head = connection.ask(request, exchange.asked(), waits_s)
            if sum(len(name) + len(value) for name, value in head.headers) > HEAD_BYTES:
                raise head_too_large()  # noqa: TRY301 - closed as after any failure
        except BaseException:
            exchange.close()
            raise
        exchange.account.most_bytes = None
        exchange.account.begins()
        exchange.status = head.status_code
        exchange.answered = connection.pieces(request.method, head, waits_s.get("read"))
        return httpx.Response(head.status_code, headers=head.headers.raw_items(), stream=exchange)

    def close(self) -> None:
        """Any thread may; one that waits for the server is woken."""
        with self._lock:
            self._closed = True
            left, self._idle = [one.stream for one in (*self._idle, *self._busy)], []
            left += self._opening
        for stream in left:
            stream.close()

    def _connected(self, url: httpx.URL, account: Account, within_s: float | None) -> Connection:
        """A connection that waits for a request, or a new one."""
        origin, now_s = (url.scheme, url.raw_host, url.port), self._monotonic()
        with self._lock:
            stale = [one for one in self._idle if one.origin != origin or one.is_stale(now_s)]
            self._idle = [one for one in self._idle if one not in stale]
            connection = self._idle.pop() if self._idle else None
        for one in stale:
            one.stream.close()
        if connection is None:
            connection = Connection(origin, self.open_stream(url, account, within_s))
        connection.stream.account = account
        with self._lock:
            self._busy.add(connection)
            closed = self._closed
        if closed:
            self._give_back(connection)
            raise _closed_meanwhile()
        return connection

    def open_stream(self, url: httpx.URL, account: Account, within_s: float | None) -> CountedStream:
        """A new connection's bytes; what a proxy's tunnel takes is the request's, a handshake has its own entry."""
        host, port = url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]
        with _mapped(httpx.ConnectError, httpx.ConnectError):
            if self._proxy is None:
                sock = socket.create_connection((host, port), within_s)
            else:
                sock = open_tunnel(self._proxy, (host, port), within_s, account.tunnelled)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake = Account()
        stream = CountedStream(sock, handshake, self._paces)
        with self._lock:
            self._opening.add(stream)
            closed = self._closed
        try:
            if closed:
                raise _closed_meanwhile()  # noqa: TRY301 - closed as after any failure
            if url.scheme == "https":
                try:
                    stream.start_tls(self._context, host, within_s)
                finally:
                    self._tls_version = stream.tls_version or self._tls_version
                    self._note(handshake, method="TLS", path="", purpose=HANDSHAKE)
        except BaseException:
            stream.close()
            raise
        finally:
            with self._lock:
                self._opening.discard(stream)
        return stream

    def _give_back(self, connection: Connection) -> None:
        connection.kept_until_s = self._monotonic() + KEPT_S
        with self._lock:
            self._busy.discard(connection)
            kept = not self._closed and connection.serves_again
            if kept:
                self._idle.append(connection)
        if not kept:
            connection.stream.close()

    def _ended(self, exchange: _Exchange) -> None:
        if exchange.connection is not None:
            self._give_back(exchange.connection)
        self._places.release()
        request = exchange.request
        extensions = request.extensions
        self._note(
            exchange.account,
            method=request.method,
            path=request.url.path,
            purpose=str(extensions.get("purpose", "request")),
            status=exchange.status,
            body_sent_bytes=exchange.body_sent_bytes,
            body_received_bytes=exchange.body_received_bytes,
            study=extensions.get("study"),
        )

    def _note(self, account: Account, **facts: object) -> None:
        counted = {
            "time_s": self._clock(),
            "server": self._server,
            "status": None,
            "body_sent_bytes": 0,
            "body_received_bytes": 0,
            "socket_sent_bytes": account.sent_bytes,
            "socket_received_bytes": account.received_bytes,
            "tls_version": self._tls_version,
        }
        self._ledger.append(LedgerEntry.model_validate(counted | facts))


def _closed_meanwhile() -> httpx.ConnectError:
    return httpx.ConnectError("the connection was closed while it was made")
