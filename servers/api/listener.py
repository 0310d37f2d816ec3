"""Connections taken from the operating system one by one, admitted first, and HTTP/1.1 with bounds.

uvicorn lets asyncio accept, which begins a TLS handshake for whoever comes; nobody could be counted before it ends.
Here a connection is counted at its first packet, refused without a byte, and given a time for its handshake.

uvicorn's protocol over httptools keeps whatever headers come, waits for ever for the rest of a head or a body, and
queues every request of a pipeline. Here heads, times and rates have bounds, and there is one request at a time, before
anybody is authenticated. Bodies pass through without a copy.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from asyncio import BaseTransport, TimerHandle, Transport
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, cast

import httptools
import uvicorn
from uvicorn import Config
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from protocol.errors import ConfigurationError, ErrorCode
from servers.api.admission import VISIT, Admission, Visit
from servers.problems import MEDIA_TYPE, problem_body
from servers.settings import Limits

_LINGER_S: Final = 1.0
"""The time for a caller to take the answer that explains the end."""
_LARGE_BYTES: Final = 2**20
# Agents and the other server are the only callers, and stay far below: an operator had nothing to tune here.
_REQUEST_LINE_BYTES: Final = 4096
_HEADERS: Final = 64
_HEAD_BYTES: Final = 2**15
# 7 MB in an hour: over a slower line a large contribution would hold its round up for longer than that.
_LEAST_BYTES_PER_S: Final = 2048.0
OnRefusal = Callable[[ErrorCode], None]


@dataclass(frozen=True)
class Refusal:
    """The answer to a caller whose connection is closed."""

    status: int
    code: ErrorCode
    detail: str


_MALFORMED: Final = Refusal(400, ErrorCode.MALFORMED_MESSAGE, "this is not HTTP/1.1")
_UPGRADE: Final = Refusal(400, ErrorCode.MALFORMED_MESSAGE, "nothing but HTTP/1.1 is spoken here: leave Upgrade out")
_PIPELINE: Final = Refusal(400, ErrorCode.MALFORMED_MESSAGE, "one request at a time: wait for its answer")
_NO_LENGTH: Final = Refusal(411, ErrorCode.MALFORMED_MESSAGE, "a body needs a Content-Length; chunks are not taken")
_SLOW_BODY: Final = Refusal(408, ErrorCode.UNAVAILABLE, "the body came too slowly; send it again")
_SLOW_HEAD: Final = Refusal(408, ErrorCode.UNAVAILABLE, "the request's head came too slowly; send it again")
_TOO_MANY: Final = Refusal(429, ErrorCode.UNAVAILABLE, "too many requests from this address; try again later")


class _Refused(Exception):
    """Raised inside the parser to stop it."""


class BoundedHttp(HttpToolsProtocol):
    """One admitted connection. Every refusal is a problem+json body, then the connection is closed."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        visit: Visit,
        limits: Limits,
        on_refusal: OnRefusal,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._visit = visit
        self._limits = limits
        self._on_refusal = on_refusal
        self._refusal: Refusal | None = None
        self._timer: TimerHandle | None = None
        self._writing: TimerHandle | None = None
        self._in_head = True
        self._heads = 0
        self._head_bytes = 0
        self._body_bytes = 0
        self._all_bytes = 0
        self._early = b""

    # --- the connection ---

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast("Transport", transport))  # uvloop's are none of asyncio's classes
        self._visit.abort = self.transport.abort
        self._within(self._limits.header_s, self._head_too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.resume_writing()
        self._visit.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._answered():
            self._early += data
            self.flow.pause_reading()
            return
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if self._in_head:
            data = self._take_head(data)
        if data and self._refusal is None:
            self._body_bytes += len(data)
            self._all_bytes += len(data)
            self._feed(data)

    def _answered(self) -> bool:
        """The caller has the whole answer, of which the application has not said yet that it was the whole.

        What comes now is the next request, and no pipelining: it waits for the application's word.
        """
        last = self.cycle
        if not self._in_head or last is None or last.response_complete or not last.response_started:
            return False
        return last.chunked_encoding is False and last.expected_content_length == 0

    def _take_head(self, data: bytes) -> bytes:
        """Feed no more than a head may have; what lies behind it comes back."""
        if self._refusal is not None:
            return b""
        if self._timer is None:
            self._within(self._limits.header_s, self._head_too_slow)
        before = self._heads
        piece = data[: _HEAD_BYTES - self._head_bytes]
        self._feed(piece)
        if self._heads != before or self._refusal is not None:
            return b"" if self._refusal is not None else data[len(piece) :]
        self._head_bytes += len(piece)
        if self._head_bytes >= _HEAD_BYTES:
            self._refuse(self._too_large(f"a request's head may have {_HEAD_BYTES} bytes"))
        return b""

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(self._refusal or _MALFORMED)

    # --- what the parser finds ---

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop(_PIPELINE)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > _REQUEST_LINE_BYTES:
            self._stop(Refusal(414, ErrorCode.TOO_LARGE, f"a request's address may have {_REQUEST_LINE_BYTES} bytes"))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= _HEADERS:
            self._stop(self._too_large(f"a request may have {_HEADERS} headers"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._heads += 1
        self._in_head = False
        self._stop_timer()
        if self.parser.should_upgrade():
            self._stop(_UPGRADE)
        if any(name == b"transfer-encoding" for name, _ in self.headers):
            self._stop(_NO_LENGTH)
        address = self._visit.begin([value for name, value in self.headers if name == b"x-forwarded-for"])
        if address is None:
            self._stop(_TOO_MANY)
        cast("dict[str, Any]", self.scope)[VISIT] = self._visit
        self._body_bytes = 0
        self._within(self._limits.stall_s, self._check_body)
        super().on_headers_complete()
        self._end_if_too_large()

    def on_body(self, body: bytes) -> None:
        """As uvicorn's; but what the application has not yet asked for is copied only where more comes behind it."""
        if self.cycle.response_complete:
            return
        # uvicorn declares bytes and joins bytearrays
        self.cycle.body = self.cycle.body + body if self.cycle.body else body  # type: ignore[assignment]
        if len(self.cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._stop_timer()
        super().on_message_complete()
        if self._all_bytes > _LARGE_BYTES:
            self._visit.grew()
        self._end_if_too_large()
        if self.cycle.response_complete:  # answered early: uvicorn's own timer has been stopped by the body
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        self._visit.end()
        super().on_response_complete()
        early, self._early = self._early, b""
        if early and not self.transport.is_closing():
            self.data_received(early)

    def _end_if_too_large(self) -> None:
        """Said in the head of the answer, so only while none has begun."""
        if self._visit.too_large and not self.cycle.response_started:
            self.cycle.keep_alive = False

    # --- times ---

    def _within(self, seconds: float, late: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_too_slow(self) -> None:
        self._refuse(_SLOW_HEAD)

    def _check_body(self) -> None:
        """A body that comes slower than it must, unless it is this server that lets it wait."""
        if self._body_bytes < _LEAST_BYTES_PER_S * self._limits.stall_s and not self.flow.read_paused:
            self._refuse(_SLOW_BODY)
            return
        self._body_bytes = 0
        self._within(self._limits.stall_s, self._check_body)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._visit.grew()
        if self._writing is None:
            self._writing = self.loop.call_later(self._limits.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    # --- refusing ---

    @staticmethod
    def _too_large(detail: str) -> Refusal:
        return Refusal(431, ErrorCode.TOO_LARGE, detail)

    def _stop(self, refusal: Refusal) -> None:
        """Leave the parser; ``_feed`` then refuses."""
        self._refusal = refusal
        raise _Refused(refusal.detail)

    def _refuse(self, refusal: Refusal) -> None:
        """Say why, unless an answer is under way, and close."""
        self._refusal = refusal
        self._stop_timer()
        self._on_refusal(refusal.code)
        if self.transport.is_closing():
            return
        busy = self.cycle is not None and not self.cycle.response_complete
        if busy and (self.cycle.response_started or refusal is _PIPELINE):
            self.transport.abort()
            return
        if busy:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = problem_body(refusal.code, refusal.detail, refusal.status)
        head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
        self.flow.pause_reading()  # whatever else comes stays with its sender
        self.transport.write(STATUS_LINE[refusal.status] + head + body)
        self.transport.close()
        self.loop.call_later(_LINGER_S, self.transport.abort)


_BACKLOG: Final = 1024
_EXHAUSTED_PAUSE_S: Final = 0.2
_TLS_SHUTDOWN_S: Final = 10.0

MakeProtocol = Callable[[Visit], BoundedHttp]


def listen(key: str, host: str, port: int) -> socket.socket:
    """A listening socket. Raises: ConfigurationError that names the setting ``key``"""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, number)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigurationError(
            f"key '{key}': {host}:{port} cannot be listened on: {error.strerror}; choose another"
        ) from None
    return listener


class Listener:
    """Accepts until it is closed; what uvicorn closes and waits for."""

    def __init__(
        self,
        listener: socket.socket,
        admission: Admission,
        make: MakeProtocol,
        tls: Callable[[], ssl.SSLContext | None],
        limits: Limits,
    ) -> None:
        """``tls`` is asked for every connection: another certificate may be shown than to the one before."""
        self._listener = listener
        self._admission = admission
        self._make = make
        self._tls = tls
        self._handshake_s = limits.header_s
        self._beginning: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        self._accepting.cancel()
        for task in self._beginning:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._accepting, *self._beginning, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._listener)
            except OSError:  # no file descriptors left, or the caller has gone: the next ones may do better
                await asyncio.sleep(_EXHAUSTED_PAUSE_S)
                continue
            visit = self._admission.admit(address[0])
            if visit is None:
                connection.close()
            else:
                task = asyncio.create_task(self._begin(connection, visit))
                visit.abort = task.cancel
                self._beginning.add(task)
                task.add_done_callback(self._beginning.discard)
            await asyncio.sleep(0)  # a flood of connections must not keep the others waiting

    async def _begin(self, connection: socket.socket, visit: Visit) -> None:
        """The handshake; from then on the protocol ends the visit."""
        loop = asyncio.get_running_loop()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            tls = self._tls()
            if tls is None:
                await loop.connect_accepted_socket(lambda: self._make(visit), connection)
            else:
                await loop.connect_accepted_socket(
                    lambda: self._make(visit),
                    connection,
                    ssl=tls,
                    ssl_handshake_timeout=self._handshake_s,
                    ssl_shutdown_timeout=_TLS_SHUTDOWN_S,
                )
        except OSError:  # ssl.SSLError is one, and so is a handshake's end of time
            visit.leave()
        except BaseException:
            visit.leave()
            raise


class BoundedServer(uvicorn.Server):
    """A uvicorn server that listens as above; the one ``beside`` it begins and ends with it."""

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        admission: Admission,
        on_refusal: Callable[[ErrorCode], None],
        *,
        hears_signals: bool = True,
        beside: BoundedServer | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(config)
        self._hears_signals = hears_signals
        self._beside = beside
        self._other: asyncio.Task[None] | None = None
        self._listener = listener
        self._limits = admission.limits
        self._admission = admission
        self._on_refusal = on_refusal
        self._tls = tls

    def show(self, tls: ssl.SSLContext) -> None:
        """Connections from here on are made under this; open ones stay as they are."""
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, with a listener of our own."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        listening = Listener(self._listener, self._admission, self._protocol, lambda: self._tls, self._limits)
        self.servers = cast("list[asyncio.Server]", [listening])
        self.started = True
        if self._beside is not None:
            self._other = asyncio.create_task(self._beside.serve())

    async def on_tick(self, counter: int) -> bool:
        """As uvicorn's, but a request under way gets the new headers too: it keeps the list of its arrival, and an
        answer that waited for news had the Date of back then, by which callers judged the clocks.
        """
        shown = self.server_state.default_headers
        stops = await super().on_tick(counter)
        shown[:] = self.server_state.default_headers
        self.server_state.default_headers = shown
        return stops

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The one beside first: what it shows needs the application."""
        if self._beside is not None and self._other is not None:
            self._beside.should_exit = True
            await self._other
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """One of two servers in a process hears signals."""
        with super().capture_signals() if self._hears_signals else nullcontext():
            yield

    def _protocol(self, visit: Visit) -> BoundedHttp:
        return BoundedHttp(
            self.config,
            self.server_state,
            self.lifespan.state,
            visit=visit,
            limits=self._limits,
            on_refusal=self._on_refusal,
        )
