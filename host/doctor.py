"""Findings of a look at this machine and its way to a server, each with what to do; as text and as JSON.

Of a server nothing is asked that a stranger could not ask: one TLS handshake, a second one without trust where the
first is refused (to say whose certificate is shown; nothing is sent over it), and the public health.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509

from host.frozen import Frozen
from host.network import WebProxy, clock_ahead_s, open_tunnel, why_unreachable
from protocol.channel.signing import MAX_AGE_S, MAX_SKEW_S
from protocol.errors import MoietyError
from protocol.text import printable


class Verdict(StrEnum):
    """The result of one look."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(Frozen):
    """``check`` was looked at and ``found``; ``fix`` is the next step where the verdict is not ok."""

    check: str
    verdict: Verdict
    found: str
    fix: str = ""


class Report(Frozen):
    """All findings, in the order in which they were looked at."""

    of: str
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """True if nothing failed; warnings are for later."""
        return all(one.verdict is not Verdict.FAILED for one in self.findings)


_SHOWN: Final = {Verdict.OK: "ok  ", Verdict.WARNING: "WARN", Verdict.FAILED: "FAIL"}


def ok(check: str, found: str) -> Finding:
    return Finding(check=check, verdict=Verdict.OK, found=found)


def warning(check: str, found: str, fix: str) -> Finding:
    return Finding(check=check, verdict=Verdict.WARNING, found=found, fix=fix)


def failed(check: str, found: str, fix: str = "") -> Finding:
    return Finding(check=check, verdict=Verdict.FAILED, found=found, fix=fix)


def looked(check: str, look: Callable[[], str]) -> Finding:
    """Report a finding: well if ``look`` returns, else the error's own words, which name the next step."""
    try:
        return ok(check, look())
    except MoietyError as error:
        return failed(check, error.detail)


def lines(findings: Iterable[Finding]) -> Iterator[str]:
    """One line for each finding, and one for what to do; nothing of another party's text moves the cursor."""
    for one in findings:
        yield f"{_SHOWN[one.verdict]} {one.check}: {printable(one.found)}"
        if one.fix:
            yield f"     -> {printable(one.fix)}"


def show(report: Report, *, json_output: bool) -> bool:
    """To standard output; whether nothing failed."""
    if json_output:
        sys.stdout.write(report.model_dump_json() + "\n")
        return report.healthy
    sys.stdout.write("\n".join(lines(report.findings)) + "\n")
    count = sum(one.verdict is Verdict.FAILED for one in report.findings)
    sys.stdout.write(
        f"{printable(report.of)}: " + (f"{count} of {len(report.findings)} failed\n" if count else "nothing failed\n")
    )
    return report.healthy


_GIB: Final = 2**30
_MEMORY: Final = Path("/proc/meminfo")


def look_at_disk(check: str, folder: Path, least_bytes: int, wanted_bytes: int) -> Finding:
    """Free space where ``folder`` is or will be, and whether this process may write there."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return failed(check, f"{there} cannot be written by this user", f"give {folder} to the user that runs this")
    free = shutil.disk_usage(there).free
    found = f"{free / _GIB:.1f} GiB free at {folder}"
    if free < least_bytes:
        return failed(check, found, f"at least {least_bytes / _GIB:.2f} GiB are needed: free some, or use another disk")
    if free < wanted_bytes:
        return warning(check, found, f"{wanted_bytes / _GIB:.0f} GiB are comfortable for models and their records")
    return ok(check, found)


def look_at_memory(wanted_bytes: int, meminfo: Path = _MEMORY) -> Finding:
    """Compare the memory that Linux calls available without swapping."""
    try:
        table = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
        available = int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return warning("memory", "this system does not say how much is available", "look by hand")
    found = f"{available / _GIB:.1f} GiB available"
    if available < wanted_bytes:
        return warning("memory", found, f"{wanted_bytes / _GIB:.0f} GiB are comfortable")
    return ok("memory", found)


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
    """Return the certificate that is shown instead, by a handshake that trusts anybody and sends nothing."""
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
    ahead_s = clock_ahead_s(date, now_s - 0.5)  # a Date has whole seconds
    if ahead_s is None:
        return warning(check, "the server names no time", "compare both clocks by hand")
    at = datetime.fromtimestamp(now_s, UTC).strftime("%H:%M:%S UTC")
    found = f"this machine's ({at}) is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the server's"
    if not -MAX_AGE_S < ahead_s < MAX_SKEW_S:
        return failed(check, found, "set the clock that is wrong by NTP: requests are refused as they are now")
    if abs(ahead_s) > _NOTABLE_S:
        return warning(check, found, "let NTP set both clocks, before they are too far apart")
    return ok(check, found)
