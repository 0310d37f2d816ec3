"""Why a server could not be reached, in words that say who has to do what; a library's own words are for programs."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Final

from host.network.web_proxy import ProxyRefused
from protocol.printable import printable

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
"""By OpenSSL's verification errors."""
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
