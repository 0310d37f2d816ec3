"""A TCP relay on loopback that counts the bytes of both directions: what clients and server say, TLS and all."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Final, Self

_BUFFER_BYTES: Final = 1 << 18
_LOOPBACK: Final = "127.0.0.1"


class Relay:
    """Whoever connects to ``port`` speaks to ``target_port``."""

    def __init__(self, target_port: int) -> None:
        self._target = (_LOOPBACK, target_port)
        self._listening = socket.create_server((_LOOPBACK, 0), backlog=64)
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._up = self._down = 0
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="relay", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        with self._lock:
            still_open = list(self._open)
        for one in still_open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def counted(self) -> tuple[int, int]:
        """Bytes up, from clients to the server, and down, so far."""
        with self._lock:
            return self._up, self._down

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._join, args=(client, server), name="relay", daemon=True).start()

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        """Both directions of one connection, until both have ended."""
        with client, server:
            with self._lock:
                self._open |= {client, server}
            down = threading.Thread(target=self._carry, args=(server, client, False), name="relay", daemon=True)
            down.start()
            self._carry(client, server, up=True)
            down.join()
            with self._lock:
                self._open -= {client, server}

    def _carry(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        buffer = bytearray(_BUFFER_BYTES)
        view = memoryview(buffer)
        with contextlib.suppress(OSError):
            while count := source.recv_into(buffer):
                sink.sendall(view[:count])
                with self._lock:
                    self._up += count if up else 0
                    self._down += 0 if up else count
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
