"""An HTTP proxy for CONNECT on the loopback, with a password if asked to; it counts the bytes of the client's side.

``python3 web_proxy.py HOST PORT USER:PASSWORD`` runs one for good, in a container for instance; standard library alone.
"""

from __future__ import annotations

import base64
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class TunnellingProxy:
    """Speaks for itself until the tunnel stands; ``answer`` replaces its answer, byte for byte.

    With ``to`` it is no proxy: it passes every byte on to there.
    """

    def __init__(
        self,
        credentials: str | None = None,
        answer: bytes | None = None,
        at: tuple[str, int] = ("127.0.0.1", 0),
        to: tuple[str, int] | None = None,
    ) -> None:
        self._to = to
        self.asked: list[str] = []
        self.bytes_up = self.bytes_down = 0
        self._told = None if credentials is None else base64.b64encode(credentials.encode()).decode()
        self._answer = answer
        self._listener = socket.create_server(at)
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def join(self) -> None:
        """Wait until all connections so far have ended, and every byte of them was counted."""
        for thread in self._threads:
            thread.join(5)

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                self._spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            if self._to is not None:
                return self._join(client, socket.create_connection(self._to))
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                piece = client.recv(4096)
                if not piece:
                    return
                head += piece
            self.bytes_up += len(head)
            lines = head.decode("latin-1").split("\r\n")
            self.asked.append(lines[0])
            if self._answer is not None:
                return self._say(client, self._answer)
            if self._told is not None and f"Proxy-Authorization: Basic {self._told}" not in lines:
                return self._say(client, b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            host, _, port = lines[0].split(" ")[1].rpartition(":")
            try:
                server = socket.create_connection((host.strip("[]"), int(port)))
            except OSError:
                return self._say(client, b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            answer = b"HTTP/1.1 200 Connection established\r\n\r\n"
            self.bytes_down += len(answer)
            client.sendall(answer)
            self._join(client, server)

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        self._open.append(server)
        self._spawn(self._pump, server, client, False)
        self._pump(client, server, True)

    def _say(self, client: socket.socket, answer: bytes) -> None:
        client.sendall(answer)
        client.close()

    def _pump(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        """An end that is gone, killed ones included, ends the other way too: nobody waits for it."""
        with suppress(OSError):
            while piece := source.recv(65536):
                if up:
                    self.bytes_up += len(piece)
                else:
                    self.bytes_down += len(piece)
                sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def tunnelling_proxy(credentials: str | None = None, answer: bytes | None = None) -> Iterator[TunnellingProxy]:
    """Runs as long as the block."""
    proxy = TunnellingProxy(credentials, answer)
    try:
        yield proxy
    finally:
        proxy.close()


if __name__ == "__main__":
    TunnellingProxy(sys.argv[3], at=(sys.argv[1], int(sys.argv[2])))
    threading.Event().wait()
