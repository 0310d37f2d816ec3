"""Addresses and ways to them: proxies, the loopback, why nobody answers, whether two addresses are two hosts.

A hospital's HTTP proxy on the way to a server: a tunnel asked for with CONNECT (RFC 9110, section 9.3.6).

The proxy learns the server's host name and port, and sees TLS from then on; one that opens TLS is for the envelopes
(docs/protocol.md 14). Credentials go to the proxy alone, as Basic ones do: readable on the way to it.
"""

from __future__ import annotations

import base64
import errno
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from protocol.errors import ConfigurationError
from protocol.text import printable


def is_loopback(host: str) -> bool:
    """A host name or address; a name other than ``localhost`` is not resolved."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_loopback_url(url: str) -> bool:
    """As :func:`is_loopback`, for the host of a URL."""
    return is_loopback(urlsplit(url).hostname or "")


def why_not_free(host: str, port: int) -> OSError | None:
    """Listen for a moment, as a server would. -> the system's error; None where the port is free"""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def require_apart(urls: tuple[str, str]) -> str:
    """Require two hosts for both operators' servers, or this machine alone, for a try.

    Two names of one machine are not found out here: who the operators are is for people to look at.
    Raises: ConfigurationError
    """
    hosts = [(urlsplit(url).hostname or "").lower() for url in urls]
    if all(is_loopback(host) for host in hosts):
        return "both on the loopback: for a try alone, since one machine sees both halves of everything"
    if hosts[0] == hosts[1]:
        raise ConfigurationError(
            f"both operators' servers are at {hosts[0]!r}: whoever runs that machine sees both halves of everything; "
            "two organisations that do not collude run one each (a try on one machine uses the loopback)"
        )
    return f"{hosts[0]} and {hosts[1]}"


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


_LONGEST: Final = 200
_CERTIFICATE: Final = {
    9: "its TLS certificate is not valid yet: compare this machine's clock and the server's, then ask its operator",
    10: "its TLS certificate has expired: its operator must renew it (or this machine's clock is far ahead)",
    18: "its TLS certificate is signed by itself and not among the CA file's: ask its operator for the CA file",
    19: "its TLS certificate ends in a CA that the CA file does not have: ask its operator for the CA file, or your "
    "network's people whether a proxy opens TLS on the way",
    20: "its TLS certificate is by a CA that the CA file does not have: ask its operator for the CA file, or ask your "
    "network's people whether a proxy opens TLS on the way",
    21: "its TLS certificate cannot be checked: the CA file lacks the CA, or the server does not send its whole chain",
    23: "its TLS certificate was revoked: ask its operator",
    62: "its TLS certificate is for another host name than the roster's address: ask its operator, or your network's "
    "people whether this is another machine",
    64: "its TLS certificate is for another IP address than the roster's: ask its operator",
}
"""Remedies by OpenSSL's verification errors."""
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"})
_TOO_OLD: Final = frozenset(
    {"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE", "VERSION_TOO_LOW"}
)
_WAITS: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""No failures: TLS waited for the network when the failure came."""
_REFUSED: Final = "nobody listens there: the server is down, or another port is meant"
_NO_WAY: Final = "no way leads there: look at this machine's network, its firewall and DNS"
_BY_NUMBER: Final = {
    errno.ECONNREFUSED: _REFUSED,
    errno.EHOSTUNREACH: _NO_WAY,
    errno.ENETUNREACH: _NO_WAY,
    errno.ECONNRESET: "the connection was cut on the way: a firewall or proxy, or the server ended",
}


def why_unreachable(error: BaseException) -> str:
    """The most precise cause among those that led to ``error``, in words; else the library's own."""
    causes = [one for one in _causes(error) if not isinstance(one, _WAITS)]
    refused = next((cause for cause in causes if isinstance(cause, ProxyRefused)), None)
    if refused is not None:
        return str(refused)
    for find in (_of_tls, _of_the_network):
        for cause in causes:
            found = find(cause)
            if found is not None:
                return found
    text = printable(str(error))[:_LONGEST]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def clock_ahead_s(date: str | None, at_s: float) -> float | None:
    """Return how far a clock that shows ``at_s`` is ahead of an answer's Date header; None where that says no time."""
    try:
        return at_s - parsedate_to_datetime((date or "")[:64]).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None


def _of_tls(error: BaseException) -> str | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        said = printable(error.verify_message)[:_LONGEST]
        return _CERTIFICATE.get(error.verify_code, f"its TLS certificate is not accepted ({said}): ask its operator")
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None) or ""  # only the library's own has one
        if reason in _NO_TLS:
            return "it answers, but does not speak TLS: another port is meant, or a proxy answers in its place"
        if reason in _TOO_OLD:
            return (
                "it speaks no TLS version that this machine accepts: ask its operator, or look for a proxy on the way"
            )
        if isinstance(error, ssl.SSLEOFError):
            return "the connection was closed during the TLS handshake: a firewall or proxy, or too many at once"
        return f"TLS failed ({printable(reason or str(error))[:_LONGEST]})"
    return None


def _of_the_network(error: BaseException) -> str | None:
    if isinstance(error, socket.gaierror):
        return (
            "its host name does not resolve: look at the address and this machine's DNS; where only an HTTP proxy "
            "leads outside, a site names it (--proxy, key 'proxy')"
        )
    if isinstance(error, OSError) and error.errno in _BY_NUMBER:
        return _BY_NUMBER[error.errno]
    if isinstance(error, TimeoutError):
        return "nothing answers in time: a firewall drops it, or the server is overloaded or down"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """``error`` and everything that led to it, as far as libraries keep it."""
    seen, left = set[int](), [error]
    while left:
        one = left.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [before for before in (one.__cause__, one.__context__) if before is not None]
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
