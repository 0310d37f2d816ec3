"""One HTTP/1.1 connection of httpcore's pool: h11 writes and reads the heads, a long answer's body goes past it.

httpcore hands every piece of a body to h11 and takes it back, which copies each byte five times over: half of what
receiving a large sum cost. Where a head states the body's length there is nothing in the body for h11 to find.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import Any, Final, cast

import h11
import httpcore

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
