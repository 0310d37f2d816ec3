"""Keep other web pages and other names of this machine out of a page that a browser shows.

A page listens where every user of the machine and every web page in a browser may reach it. So beside a session's
cookie (SameSite=Strict) a request that changes something must come from the page's own origin and carry the session's
token in its form; and every answer forbids frames, scripts and forms of anybody else.
"""

from __future__ import annotations

import hashlib
import hmac
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

MOST_FORM_BYTES: Final = 2**14
FORM_FIELD: Final = "form"
FOREIGN: Final = "That did not come from this page."
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",  # with no-referrer a browser names no origin for a form
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
Refused = tuple[HTTPStatus, str]


def same(found: str, expected: str) -> bool:
    """Compared in a time that says nothing of where they differ."""
    return hmac.compare_digest(found.encode(), expected.encode())


def form_token(session: str) -> str:
    """Return the token that a session's forms carry; another site's page cannot read it."""
    return hmac.new(session.encode(), b"moiety form", hashlib.sha256).hexdigest()


def refused_change(origin: str | None, own_origin: str, content_length: str | None) -> Refused | None:
    """Why a request that changes something is not taken, before its body is read; None where it may be."""
    if origin != own_origin:
        return HTTPStatus.FORBIDDEN, FOREIGN
    length = content_length or ""
    if not length.isdecimal() or int(length) > MOST_FORM_BYTES:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "That is more than a form of this page has."
    return None


def form_fields(body: bytes) -> dict[str, str]:
    """The first value of every field of a form that was sent."""
    text = body[:MOST_FORM_BYTES].decode(errors="replace")
    return {key: values[0] for key, values in parse_qs(text).items()}
