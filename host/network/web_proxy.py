"""A hospital's HTTP proxy on the way to a server: a tunnel asked for with CONNECT (RFC 9110, section 9.3.6).

The proxy learns the server's host name and port, and sees TLS from then on; one that opens TLS is for the envelopes
(docs/protocol.md 14). Credentials go to the proxy alone, as Basic ones do: readable on the way to it.
"""

from __future__ import annotations

import base64
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from protocol.errors import ConfigurationError
from protocol.printable import printable

_MOST_HEAD_BYTES: Final = 2**14
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: ([^\r\n]*))?\r?\n")
_USUAL_PORT: Final = 3128
_ADVICE: Final = {
    401: "ask your network's people for its user name and password (key 'proxy_credentials')",
    403: "ask your network's people to let this machine reach that host and port",
    405: "it does not know CONNECT: ask your network's people for the proxy of HTTPS",
    407: "it asks for a user name and password, or those in 'proxy_credentials' are wrong, or it takes no Basic ones",
    502: "it cannot reach the server: ask its operator whether it is up, or your network's people",
    503: "it cannot reach the server now: ask your network's people",
    504: "the server does not answer it in time: ask its operator, or your network's people",
}


class ProxyRefused(OSError):
    """The proxy opened no tunnel; the text says who has to do what."""


@dataclass(frozen=True)
class WebProxy:
    """A proxy's address and the user's credentials, "user:password"."""

    host: str
    port: int
    credentials: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, credentials: str | None = None) -> WebProxy:
        """Read a setting. Raises: ConfigurationError, without repeating a password"""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        if parts.scheme != "http" or not host or parts.path.strip("/") or parts.query or parts.fragment:
            raise ConfigurationError(
                "key 'proxy': it is written http://HOST:PORT, the way to the proxy itself being plain HTTP; what goes "
                "through it is TLS all the same"
            )
        if "@" in parts.netloc:
            raise ConfigurationError(
                "key 'proxy': user name and password do not belong into the address; write user:password into a file "
                "that only this user may read, and name it as 'proxy_credentials'"
            )
        if credentials is not None and (":" not in credentials or not credentials.isprintable()):
            raise ConfigurationError("key 'proxy_credentials': the file has one line, user:password")
        return cls(host, _USUAL_PORT if port is None else port, credentials)

    def request(self, host: str, port: int) -> bytes:
        """Return the request that opens a tunnel."""
        to = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {to} HTTP/1.1", f"Host: {to}"]
        if self.credentials is not None:
            told = base64.b64encode(self.credentials.encode()).decode("ascii")
            lines.append(f"Proxy-Authorization: Basic {told}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")


def open_tunnel(
    proxy: WebProxy,
    to: tuple[str, int],
    timeout_s: float | None,
    on_bytes: Callable[[int, int], None] = lambda sent, received: None,
) -> socket.socket:
    """A socket to the host and port ``to``; ``on_bytes`` is told what was sent and received for that.

    Raises: ProxyRefused; OSError
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        sock = socket.create_connection((proxy.host, proxy.port), timeout_s)
    except OSError as error:
        raise ProxyRefused(f"the proxy {proxy.host}:{proxy.port} cannot be reached: {error}") from error
    try:
        request = proxy.request(*to)
        sock.sendall(request)
        on_bytes(len(request), 0)
        head = _read_head(sock, deadline, on_bytes)
        _require_tunnel(head, proxy, to)
    except BaseException:
        sock.close()
        raise
    return sock


def _read_head(sock: socket.socket, deadline: float | None, on_bytes: Callable[[int, int], None]) -> bytes:
    """Byte by byte, so that nothing is taken of what the tunnel brings. Raises: ProxyRefused"""
    head = bytearray()
    while not head.endswith((b"\r\n\r\n", b"\n\n")):
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ProxyRefused("the proxy did not answer in time: ask your network's people")
            sock.settimeout(left)
        try:
            piece = sock.recv(1)
        except TimeoutError:
            raise ProxyRefused("the proxy did not answer in time: ask your network's people") from None
        if not piece:
            raise ProxyRefused("the proxy closed the connection without an answer: is that its address and port?")
        on_bytes(0, 1)
        head += piece
        if len(head) > _MOST_HEAD_BYTES:
            raise ProxyRefused("the proxy's answer is too long for one: is that its address and port?")
    return bytes(head)


def _require_tunnel(head: bytes, proxy: WebProxy, to: tuple[str, int]) -> None:
    found = _STATUS.match(head)
    where = f"the proxy {proxy.host}:{proxy.port}"
    if found is None:
        raise ProxyRefused(f"{where} does not answer as an HTTP proxy: is that its address and port?")
    status = int(found[1])
    if not 200 <= status < 300:
        said = printable((found[2] or b"").decode("latin-1"))[:100]
        advice = _ADVICE.get(status, "ask your network's people")
        raise ProxyRefused(f"{where} refuses a tunnel to {to[0]}:{to[1]} ({status} {said}): {advice}")
