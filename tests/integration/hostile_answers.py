"""A server that answers what it likes, over a real socket under TLS: bombs, and bodies and heads without an end."""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import trustme

MEGABYTE: Final = 2**20
BOMB_OPENS_TO: Final = 64 * MEGABYTE
MOST_SENT: Final = 64 * MEGABYTE
_PIECE: Final = bytes(2**16)

Script = Callable[[], Iterator[bytes]]


@cache
def _bomb() -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(bytes(MEGABYTE)) for _ in range(BOMB_OPENS_TO // MEGABYTE)) + packer.flush()


def bomb() -> Iterator[bytes]:
    """Sixty kB that open to sixty-four megabytes."""
    yield b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(_bomb()), _bomb())


def bomb_in_an_error() -> Iterator[bytes]:
    """The same as a refusal."""
    (whole,) = bomb()
    yield whole.replace(b"200 OK", b"404 No", 1)


def endless_body() -> Iterator[bytes]:
    """A body that says nothing about its length and has none."""
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield from itertools.repeat(b"%x\r\n%s\r\n" % (len(_PIECE), _PIECE), MOST_SENT // len(_PIECE))


def endless_error() -> Iterator[bytes]:
    """A refusal without an end."""
    head, *rest = endless_body()
    yield head.replace(b"200 OK", b"503 No", 1)
    yield from rest


def stated_too_long() -> Iterator[bytes]:
    """A body of which the length alone is too much."""
    yield b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % MOST_SENT
    yield from itertools.repeat(_PIECE, MOST_SENT // len(_PIECE))


def endless_header() -> Iterator[bytes]:
    """One header value without an end."""
    yield b"HTTP/1.1 200 OK\r\nX-Long: "
    yield from itertools.repeat(b"a" * len(_PIECE), MOST_SENT // len(_PIECE))


def endless_interim_answers() -> Iterator[bytes]:
    """Interim answers for ever, each of them in order."""
    yield from itertools.repeat(b"HTTP/1.1 100 Continue\r\nX-Filler: %s\r\n\r\n" % (b"a" * 1000), MOST_SENT // 1050)


@dataclass
class HostileServer:
    """Plays one script to every request; counts requests and what it could send."""

    script: Script
    authority: trustme.CA
    requests: int = 0
    sent_bytes: int = 0
    _connections: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("127.0.0.1").configure_cert(self._context)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(plain,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        with suppress(OSError), self._context.wrap_socket(plain, server_side=True) as connection:
            self._connections.append(connection)
            while self._request(connection):
                self.requests += 1
                for piece in self.script():
                    connection.sendall(piece)
                    self.sent_bytes += len(piece)

    @staticmethod
    def _request(connection: ssl.SSLSocket) -> bool:
        seen = b""
        while b"\r\n\r\n" not in seen:
            data = connection.recv(2**16)
            if not data:
                return False
            seen += data
        return True

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)


@contextmanager
def hostile_server(script: Script, authority: trustme.CA) -> Iterator[HostileServer]:
    """A running one, closed at the end."""
    server = HostileServer(script, authority)
    try:
        yield server
    finally:
        server.close()
