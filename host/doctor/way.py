"""The way from this machine to a server, step by step: name, proxy, connection, whose certificate, its clock.

Nothing that a stranger could not ask is asked: one TLS handshake, a second one without trust where the first is
refused (to say whose certificate is shown; nothing is sent over it), and the server's public health.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509

from host.doctor.finding import Finding, failed, ok, warning
from host.network.unreachable import why_unreachable
from host.network.web_proxy import WebProxy, open_tunnel
from protocol.wire.channel.signing import MAX_AGE_S, MAX_SKEW_S

TIMEOUT_S: Final = 10.0
_USUAL_PORT: Final = 443
_SOON_DAYS: Final = 30
_DAY_S: Final = 86400.0
_NOTABLE_S: Final = 2.0
_HEALTH: Final = "/healthz"


@dataclass(frozen=True)
class Way:
    """To the server called ``name`` at ``url``, trusting the certificates in ``ca`` (None: the system's)."""

    name: str
    url: str
    ca: Path | None
    proxy: WebProxy | None = None
    timeout_s: float = TIMEOUT_S

    @property
    def to(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or _USUAL_PORT


def look_at_way(way: Way, now: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Findings up to the first step that fails."""
    host, port = way.to
    asked = host if way.proxy is None else way.proxy.host
    what = f"{way.name}: " if way.proxy is None else f"{way.name}: by the proxy, "
    try:
        addresses = sorted({str(one[4][0]) for one in socket.getaddrinfo(asked, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        yield failed(f"{way.name}: name", f"{asked!r} does not resolve ({error})", "look at this machine's DNS")
        return
    yield ok(f"{way.name}: name", f"{asked} is {', '.join(addresses)}")
    try:
        sock = _connect(way)
    except OSError as error:
        yield failed(f"{what}connection to {host}:{port}", why_unreachable(error), "nothing of Moiety is the cause yet")
        return
    yield ok(f"{what}connection to {host}:{port}", "open")
    yield from _look_at_tls(way, sock, now)


def _connect(way: Way) -> socket.socket:
    """Raises: OSError"""
    if way.proxy is None:
        return socket.create_connection(way.to, way.timeout_s)
    return open_tunnel(way.proxy, way.to, way.timeout_s)


def _look_at_tls(way: Way, sock: socket.socket, now: Callable[[], float]) -> Iterator[Finding]:
    check = f"{way.name}: TLS"
    try:
        context = ssl.create_default_context(cafile=None if way.ca is None else str(way.ca))
    except (OSError, ssl.SSLError) as error:
        sock.close()
        yield failed(check, f"{way.ca} holds no CA certificates in PEM: {error}", "ask the operators for the CA file")
        return
    sock.settimeout(way.timeout_s)
    try:
        tls = context.wrap_socket(sock, server_hostname=way.to[0])
    except OSError as error:
        sock.close()
        seen = _seen_certificate(way) if isinstance(error, ssl.SSLCertVerificationError) else ""
        yield failed(check, f"{why_unreachable(error)}{seen}")
        return
    with closing(tls):
        yield _of_certificate(check, tls, now())
        yield from _look_at_health(way, tls, now)


def _of_certificate(check: str, tls: ssl.SSLSocket, now_s: float) -> Finding:
    certificate = x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"")
    found = f"{tls.version()}, {_described(certificate)}"
    left_days = (certificate.not_valid_after_utc.timestamp() - now_s) / _DAY_S
    if left_days < _SOON_DAYS:
        return warning(check, found, f"it ends in {left_days:.1f} days: its operator renews it (docs/operating.md)")
    return ok(check, found)


def _described(certificate: x509.Certificate) -> str:
    until = certificate.not_valid_after_utc.strftime("%Y-%m-%d")
    return f"certificate by {certificate.issuer.rfc4514_string()!r}, until {until}"


def _seen_certificate(way: Way) -> str:
    """Whose certificate is shown instead, by a handshake that trusts anybody and sends nothing."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with closing(_connect(way)) as sock:
            sock.settimeout(way.timeout_s)
            with closing(context.wrap_socket(sock, server_hostname=way.to[0])) as tls:
                shown = x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError):
        return ""
    return f". Shown is a {_described(shown)}, for {shown.subject.rfc4514_string()!r}"


def _look_at_health(way: Way, tls: ssl.SSLSocket, now: Callable[[], float]) -> Iterator[Finding]:
    """The server's own answer, and how far its clock is from this machine's."""
    check = f"{way.name}: answer"
    connection = http.client.HTTPConnection(way.to[0], way.to[1], timeout=way.timeout_s)
    connection.sock = tls
    try:
        connection.request("GET", _HEALTH, headers={"Accept-Encoding": "identity"})
        answer = connection.getresponse()
        answer.read(1000)
    except (OSError, http.client.HTTPException) as error:
        yield failed(check, f"it speaks TLS and does not answer ({error})", "ask its operator for the server's log")
        return
    if answer.status != http.client.OK:
        fix = "another server or a proxy answers there: compare the roster's address with its operator"
        yield failed(check, f"{answer.status} for {_HEALTH}", fix)
        return
    yield ok(check, f"{_HEALTH} is well")
    yield _of_clock(way.name, answer.headers.get("Date", ""), now())


def _of_clock(name: str, date: str, now_s: float) -> Finding:
    check = f"{name}: clock"
    try:
        ahead_s = now_s - parsedate_to_datetime(date[:64]).timestamp() - 0.5  # a Date has whole seconds
    except (ValueError, OverflowError, TypeError):
        return warning(check, "the server names no time", "compare both clocks by hand")
    at = datetime.fromtimestamp(now_s, UTC).strftime("%H:%M:%S UTC")
    found = f"this machine's ({at}) is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the server's"
    if not -MAX_AGE_S < ahead_s < MAX_SKEW_S:
        return failed(check, found, "set the clock that is wrong by NTP: requests are refused as they are now")
    if abs(ahead_s) > _NOTABLE_S:
        return warning(check, found, "let NTP set both clocks, before they are too far apart")
    return ok(check, found)
