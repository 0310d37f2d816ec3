"""Strangers' connections to a running server: bytes as they like, from addresses as they like."""

from __future__ import annotations

import json
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
ME, PROXY = "127.0.0.1", "127.0.0.3"


def set_limits(config: Path, limits: Mapping[str, object], forwarded_by: Sequence[str] = ()) -> None:
    """Rewrite a server's settings with these limits alone."""
    head = config.read_text().split("[limits]")[0]
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in limits.items())
    config.write_text(f"{head}forwarded_by = {json.dumps(list(forwarded_by))}\n[limits]\n{table}")


def resident_mb(pid: int) -> float:
    """A process's memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


class Stranger:
    """Opens connections to one server; ``local``: to one on this machine, where it has addresses of its own."""

    def __init__(self, url: str, ca: Path) -> None:
        host, port = url.removeprefix("https://").split(":")
        self._to = (host, int(port))
        self.local = host == ME
        self._context = ssl.create_default_context(cafile=str(ca))
        self._context.check_hostname = False

    def bare(self, source: str | None = None) -> socket.socket:
        """A connection that never begins TLS, from an address of this machine; whichever it is where none is said."""
        return socket.create_connection(self._to, timeout=20, source_address=None if source is None else (source, 0))

    def dial(self, source: str | None = None) -> ssl.SSLSocket:
        """A connection under TLS. Raises: OSError when it is not let in"""
        plain = self.bare(source)
        try:
            return self._context.wrap_socket(plain, server_hostname=self._to[0])
        except OSError:
            plain.close()
            raise

    def ask(self, request: bytes, source: str | None = None) -> tuple[int, bytes]:
        """One request on a connection of its own: status and body."""
        with self.dial(source) as connection:
            connection.sendall(request)
            return answer(connection)


def answer(connection: ssl.SSLSocket) -> tuple[int, bytes]:
    """Status and body of one answer; 0 when the connection ends without one."""
    seen = b""
    with suppress(OSError):
        while b"\r\n\r\n" not in seen:
            if not (data := connection.recv(2**16)):
                return 0, seen
            seen += data
        head, _, body = seen.partition(b"\r\n\r\n")
        lines = [line.partition(b":") for line in head.lower().splitlines()]
        length = next((int(value) for name, _, value in lines if name == b"content-length"), 0)
        while len(body) < length and (data := connection.recv(2**16)):
            body += data
        return int(head.split()[1]), body
    return 0, seen


def pour(connection: ssl.SSLSocket, pieces: Iterable[bytes]) -> int:
    """Send until the server will not take more: how many bytes it let come."""
    sent = 0
    with suppress(OSError):
        for piece in pieces:
            connection.sendall(piece)
            sent += len(piece)
    return sent


def closed_within(connections: Sequence[socket.socket], seconds: float) -> int:
    """Count those that the server has closed when the time is over, or as soon as all are."""
    waiting = {connection.fileno(): connection for connection in connections}
    deadline = time.monotonic() + seconds
    poll = select.poll()
    for number in waiting:
        poll.register(number, select.POLLIN)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for number, _ in poll.poll(1000 * left):
            if _ended(waiting[number]):
                poll.unregister(number)
                del waiting[number]
    return len(connections) - len(waiting)


def _ended(connection: socket.socket) -> bool:
    """Return whether nothing more comes; what came before the end is thrown away."""
    connection.setblocking(False)
    try:
        while connection.recv(2**16):
            pass
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    return True


def until(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Return whether it holds before the time is over."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False
