"""Connections taken from the operating system one by one and admitted before anything is spent on them.

uvicorn lets asyncio accept, which begins a TLS handshake for whoever comes; nobody could be counted before it ends.
Here a connection is counted at its first packet, refused without a byte, and given a time for its handshake.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final, cast

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from protocol.errors import ConfigurationError, ErrorCode
from servers.http.admission import Admission, Visit
from servers.http.bounded_http import BoundedHttp
from servers.settings import Limits

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
