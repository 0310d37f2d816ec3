"""Connections whose bytes are counted as they cross the socket, TLS included.

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
from functools import cached_property, partial
from typing import Any, Final, TypeVar, cast

import httpcore

from client_agent.network.sockets.pace import NO_CAP, PACED_BYTES, Paces
from host.network import WebProxy, open_tunnel
from protocol.errors import TooLarge

T = TypeVar("T")
HEAD_BYTES: Final = 2**16
BEFORE_HEAD_BYTES: Final = 2**19
"""What may arrive before an answer's head is complete: interim answers too, and the body's first read behind it."""
_HEAD_S: Final = 600.0
"""From the first byte on, a TLS server's tickets count, to the end of a head: longer than any long poll."""
_READ_BYTES: Final = 2**18


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
        return memoryview(bytearray(_READ_BYTES))

    @cached_property
    def _opened(self) -> memoryview:
        """Bytes out of TLS, likewise."""
        return memoryview(bytearray(_READ_BYTES))

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
