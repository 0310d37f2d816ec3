"""The bytes under a signature of the usual form, written down instead of derived (RFC 9421, 2.5).

Everything that Moiety sends is signed in one form: fixed components, fixed parameters in one order, an address without
percent signs. For that form the signature's base is a few lines of text, which are put together here. Whatever is
written otherwise, and would be as valid, is left to the library: every function answers None for it. What is made and
accepted is the same either way (tests/unit/wire/test_usual.py compares the two), in a tenth of the time.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Final

_URL: Final = re.compile(r"https?://[a-z0-9.-]+(?::[0-9]{1,5})?/[A-Za-z0-9._~/-]*(?:\?[A-Za-z0-9._~=&-]*)?")
_METHOD: Final = re.compile(r"GET|POST|PUT|DELETE")
_KEYID: Final = r"[A-Za-z0-9_-]{1,128}"
_CREATED: Final = r"0|[1-9][0-9]{0,10}"
_MOST_CREATED: Final = 10**11
_VALUE: Final = r"[A-Za-z0-9+/]{85}[AQgw]=="
_CONTENT_TYPE: Final = re.compile(r"[a-z]+/[a-z0-9.+-]+")
_STATUSES: Final = range(100, 600)
_REQUEST: Final = re.compile(
    rf'moiety=(\("@method" "@target-uri" "([a-z-]{{1,32}})"\);created=({_CREATED});keyid="({_KEYID})";alg="ed25519"'
    r';nonce="([A-Za-z0-9_-]{16,64})";tag="([a-z]+/[0-9]+)")'
)
_ANSWER: Final = re.compile(
    rf'moiety=(\("@status" "content-type" "([a-z-]{{1,32}})" "signature";req\);created=(?:{_CREATED})'
    rf';keyid="({_KEYID})";alg="ed25519";tag="([a-z]+/[0-9]+)")'
)
_SIGNATURE: Final = re.compile(f"moiety=:({_VALUE}):")


@dataclass(frozen=True)
class Asked:
    """A request's Signature-Input, read: ``text`` is what follows its label."""

    text: str
    field: str
    created: int
    key_id: str
    nonce: str
    tag: str


@dataclass(frozen=True)
class Answered:
    """An answer's, likewise."""

    text: str
    field: str
    key_id: str
    tag: str


def request_parameters(field: str, created: int, key_id: str, nonce: str, tag: str) -> str | None:
    """The Signature-Input of a request, without its label."""
    stated = f'created={created};keyid="{key_id}";alg="ed25519";nonce="{nonce}";tag="{tag}"'
    text = f'("@method" "@target-uri" "{field}");{stated}'
    return text if 0 <= created < _MOST_CREATED and _REQUEST.fullmatch(f"moiety={text}") else None


def answer_parameters(field: str, created: int, key_id: str, tag: str) -> str | None:
    """The Signature-Input of an answer, without its label."""
    stated = f'created={created};keyid="{key_id}";alg="ed25519";tag="{tag}"'
    text = f'("@status" "content-type" "{field}" "signature";req);{stated}'
    return text if 0 <= created < _MOST_CREATED and _ANSWER.fullmatch(f"moiety={text}") else None


def read_request(line: str) -> Asked | None:
    """A request's Signature-Input."""
    found = _REQUEST.fullmatch(line)
    return None if found is None else Asked(found[1], found[2], int(found[3]), found[4], found[5], found[6])


def read_answer(line: str) -> Answered | None:
    """An answer's Signature-Input."""
    found = _ANSWER.fullmatch(line)
    return None if found is None else Answered(found[1], found[2], found[3], found[4])


def read_signature(line: str) -> bytes | None:
    """The 64 bytes of a Signature field."""
    found = _SIGNATURE.fullmatch(line)
    return None if found is None else base64.b64decode(found[1])


def request_base(method: str, url: str, field: str, value: str, parameters: str) -> bytes | None:
    """Return the signature base of a request; ``value`` is the digest field's, which the caller has made or checked."""
    if not _METHOD.fullmatch(method) or not _URL.fullmatch(url):
        return None
    lines = (f'"@method": {method}', f'"@target-uri": {url}', f'"{field}": {value}')
    return "\n".join((*lines, f'"@signature-params": {parameters}')).encode()


def answer_base(
    status: int, content_type: str, field: str, value: str, request_signature: str, parameters: str
) -> bytes | None:
    """Return an answer's signature base; ``value`` likewise, ``request_signature`` the request's Signature field."""
    usual = status in _STATUSES and _CONTENT_TYPE.fullmatch(content_type) and _SIGNATURE.fullmatch(request_signature)
    if not usual:
        return None
    lines = (f'"@status": {status}', f'"content-type": {content_type}', f'"{field}": {value}')
    asked = f'"signature";req: {request_signature}'
    return "\n".join((*lines, asked, f'"@signature-params": {parameters}')).encode()
