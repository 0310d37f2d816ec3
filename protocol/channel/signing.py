"""Signed requests, signed answers and signed messages (docs/protocol.md 3, 14; RFC 9421).

Every HTTP Message Signature has one form, written down here: an Ed25519 signature labelled "moiety" over fixed
components with fixed parameters in one order. Whatever is written otherwise is refused, so nothing that a stranger
sends is parsed as a structured field.

A request covers "@method", "@target-uri" and one digest field. That is "content-digest" (RFC 9530, sha-256); a
contribution's is "sealed-digest" and a masked sum's "sealed-head-digest", which hash otherwise
(protocol/channel/commitment.py) and so have names of their own. The body is not seen: the verified digest comes back,
and the caller compares it with that of the bytes it streamed. Nonces are the caller's to store, for at least MAX_AGE_S
+ MAX_SKEW_S.

An answer covers "@status", "content-type", one digest field and, of the request, "signature" (the parameter ``req``).
A request's signature covers its nonce, so that no answer serves a second time and none serves another request. Its
digest field is "sealed-head-digest" where the body is made while it is sent: the key sealed in its head authenticates
every chunk. The time is an argument.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.channel.keys import SigningKey, VerifyKey, require_length
from protocol.errors import BadSignature, MalformedMessage
from protocol.parameters import PROTOCOL_VERSION, require_version

TAG: Final = PROTOCOL_VERSION
LABEL: Final = "moiety"
DIGEST_BYTES: Final = 32
MAX_AGE_S: Final = 60
MAX_SKEW_S: Final = 5

_NOBODYS_KEY: Final = SigningKey.from_bytes(bytes(32)).public
"""Tried for a key id that nobody has, so that trying takes as long; what it signed is refused all the same."""
_MAX_LINE_CHARACTERS: Final = 1024
_METHOD: Final = re.compile(r"[A-Z]+")
_URL: Final = re.compile(r"https?://[\x21-\x7e]+")
_STATUSES: Final = range(100, 600)
_CONTENT_TYPE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_QUOTED: Final = r"[\x20\x21\x23-\x5b\x5d-\x7e]"
_KEY_ID: Final = r"[\x21\x23-\x5b\x5d-\x7e]{1,128}"
_NONCE: Final = r"[A-Za-z0-9_-]{16,64}"
_CREATED: Final = r"0|-?[1-9][0-9]{0,14}"
_REQUEST: Final = re.compile(
    rf'{LABEL}=(\("@method" "@target-uri" "([a-z-]{{1,32}})"\);created=({_CREATED});keyid="({_KEY_ID})";alg="ed25519"'
    rf';nonce="({_NONCE})";tag="({_QUOTED}{{1,64}})")'
)
_ANSWER: Final = re.compile(
    rf'{LABEL}=(\("@status" "content-type" "([a-z-]{{1,32}})" "signature";req\);created=(?:{_CREATED})'
    rf';keyid="({_KEY_ID})";alg="ed25519";tag="({_QUOTED}{{1,64}})")'
)
_SIGNATURE: Final = re.compile(rf"{LABEL}=:([A-Za-z0-9+/]{{85}}[AQgw]==):")
_DIGEST: Final = ":([A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=):"
_DOMAIN: Final = re.compile(r"[\x20-\x7e]{1,64}")
_TAGGED: Final = re.compile(r';tag="([^"]{1,64})"')


class DigestField(StrEnum):
    """The header field that holds a request's digest, and so how the body is hashed."""

    CONTENT = "content-digest"
    SEALED = "sealed-digest"
    SEALED_HEAD = "sealed-head-digest"


_PARSED: Final = frozenset({"signature", "signature-input", *DigestField})
_PREFIXES: Final = {DigestField.CONTENT: "sha-256=", DigestField.SEALED: "", DigestField.SEALED_HEAD: ""}
_ANSWER_FIELDS: Final = (DigestField.CONTENT, DigestField.SEALED_HEAD)


@dataclass(frozen=True)
class VerifiedRequest:
    """The statement of a valid signature; the body still has to have ``body_digest``, and the nonce to be new."""

    key_id: str
    nonce: str
    created: int
    body_digest: bytes
    digest_field: DigestField = DigestField.CONTENT


@dataclass(frozen=True)
class VerifiedAnswer:
    """The statement of a valid signature; the body still has to have ``body_digest``."""

    content_type: str
    body_digest: bytes
    digest_field: DigestField


# --- requests ---------------------------------------------------------------------------------------------------------


def sign_request(
    method: str,
    url: str,
    body_digest: bytes,
    key: SigningKey,
    key_id: str,
    *,
    created: int,
    nonce: str,
    digest_field: DigestField = DigestField.CONTENT,
) -> tuple[tuple[str, str], ...]:
    """Headers to add to a request: its digest field, Signature-Input, Signature.

    ``body_digest`` is the raw digest of the body as sent (of b"" when there is none), ``created`` unix seconds,
    ``nonce`` 16 to 64 letters, digits, "-" or "_", never used before by this key.

    Raises: MalformedMessage on anything that could not be verified
    """
    require_length("a body digest", body_digest, DIGEST_BYTES)
    if not re.fullmatch(_NONCE, nonce) or not re.fullmatch(_KEY_ID, key_id):
        raise MalformedMessage(
            "a request needs a nonce of 16 to 64 letters, digits, '-' or '_' and a printable key id of up to 128"
        )
    value = digest_value(digest_field, body_digest)
    stated = f'created={created};keyid="{key_id}";alg="ed25519";nonce="{nonce}";tag="{TAG}"'
    parameters = f'("@method" "@target-uri" "{digest_field}");{stated}'
    base = _request_base(method, url, digest_field, value, parameters)
    if base is None or not _REQUEST.fullmatch(f"{LABEL}={parameters}"):
        raise MalformedMessage(
            "this request cannot be signed: it takes a method in capitals, an absolute address and unix seconds, "
            f"found {method!r}, {url!r} and {created}"
        )
    return ((digest_field.title(), value), *_signature_lines(base, parameters, key))


def verify_request(
    method: str,
    url: str,
    headers: Sequence[tuple[str, str]],
    keys: Callable[[str], VerifyKey | None],
    now: int,
) -> VerifiedRequest:
    """Check the one signature of a request against ``keys`` (key id -> key, None if unknown) at unix time ``now``.

    Checks:  exactly one signature, of the one form; created at most ``MAX_AGE_S`` ago and at most
             ``MAX_SKEW_S`` ahead; the signature itself
    Leaves:  the body's digest and the nonce's freshness to the caller
    Hides:   whether a key id is known: an unknown one costs as much and is refused with the same words as a signature
             that does not match
    Raises:  BadSignature; OtherVersion, when the signature's tag names another version of the protocol
    """
    _require_short(headers)
    require_own_version(headers)
    field, body_digest = signed_digest(headers)
    stated = _REQUEST.fullmatch(only_line(headers, "signature-input"))
    signature = _SIGNATURE.fullmatch(only_line(headers, "signature"))
    if stated is None or signature is None or stated[2] != field:
        raise _request_refused(
            f'the Signature-Input must cover exactly @method, @target-uri, {field.value}, written {LABEL}=("@method" '
            f'"@target-uri" "{field.value}");created=SECONDS;keyid="ID";alg="ed25519";nonce="16 TO 64 LETTERS";'
            f'tag="{TAG}", and the Signature must be {LABEL}=:BASE64:'
        )
    parameters, _, created, key_id, nonce, tag = stated.groups()
    if tag != TAG:
        raise BadSignature(f"the signature's tag must be {TAG!r}: it was made for something else or another version")
    require_time(int(created), now)
    key = keys(key_id)
    base = _request_base(method, url, field, digest_value(field, body_digest), parameters)
    try:
        (key or _NOBODYS_KEY).verify(base64.b64decode(signature[1]), base or b"")
    except BadSignature:
        raise _request_refused() from None
    if key is None or base is None:
        raise _request_refused()
    return VerifiedRequest(key_id, nonce, int(created), body_digest, field)


def _request_base(method: str, url: str, field: str, value: str, parameters: str) -> bytes | None:
    if not _METHOD.fullmatch(method) or not _URL.fullmatch(url):
        return None
    lines = (f'"@method": {method}', f'"@target-uri": {url}', f'"{field}": {value}')
    return "\n".join((*lines, f'"@signature-params": {parameters}')).encode()


def _request_refused(reason: str = "") -> BadSignature:
    reason = reason or "the signature does not match the method, address, content digest, parameters and key id"
    return BadSignature(
        f"the request's signature is refused: {reason}; sign exactly this request with the key in the roster"
    )


# --- answers ----------------------------------------------------------------------------------------------------------


def sign_answer(
    status: int,
    content_type: str,
    body_digest: bytes,
    key: SigningKey,
    key_id: str,
    *,
    created: int,
    request_signature: str,
    digest_field: DigestField = DigestField.CONTENT,
) -> tuple[tuple[str, str], ...]:
    """Headers of an answer to the request that carries ``request_signature`` as its Signature field.

    Raises: BadSignature, when that is no field that a signature can cover
    Source: RFC 9421, 2.4
    """
    require_length("a body digest", body_digest, DIGEST_BYTES)
    value = digest_value(digest_field, body_digest)
    stated = f'created={created};keyid="{key_id}";alg="ed25519";tag="{TAG}"'
    parameters = f'("@status" "content-type" "{digest_field}" "signature";req);{stated}'
    base = _answer_base(status, content_type, digest_field, value, request_signature, parameters)
    if base is None or not _ANSWER.fullmatch(f"{LABEL}={parameters}"):
        raise BadSignature(
            f"this answer cannot be signed: it takes a status, a content type and its request's Signature, found "
            f"{status}, {content_type!r} and {request_signature!r}"
        )
    return (("Content-Type", content_type), (digest_field.title(), value), *_signature_lines(base, parameters, key))


def verify_answer(
    status: int, headers: Sequence[tuple[str, str]], request_signature: str, key: VerifyKey, key_id: str
) -> VerifiedAnswer:
    """Check an answer's one signature by ``key``, over the request that was sent.

    Leaves:  the body's digest to the caller; its age, since it is bound to a request that was just sent
    Raises:  BadSignature
    """
    _require_short(headers)
    field, body_digest = signed_digest(headers)
    if field not in _ANSWER_FIELDS:
        raise BadSignature(f"an answer carries {_ANSWER_FIELDS[0]} or {_ANSWER_FIELDS[1]}, not {field.value}")
    content_type = only_line(headers, "content-type")
    stated = _ANSWER.fullmatch(only_line(headers, "signature-input"))
    signature = _SIGNATURE.fullmatch(only_line(headers, "signature"))
    if stated is None or signature is None or (stated[2], stated[4]) != (field, TAG):
        raise BadSignature(
            f'an answer\'s signature must cover exactly @status, content-type, {field.value}, "signature";req, with '
            f"created, keyid, alg and the tag {TAG!r}, in this order"
        )
    if stated[3] != key_id:
        raise BadSignature("the answer is signed with another key than the server's in the roster")
    value = digest_value(field, body_digest)
    base = _answer_base(status, content_type, field, value, request_signature, stated[1])
    try:
        key.verify(base64.b64decode(signature[1]), base or b"")
    except BadSignature:
        base = None
    if base is None:
        raise BadSignature("the answer's signature is refused: it does not match status, type, digest and request")
    return VerifiedAnswer(content_type, body_digest, field)


def _answer_base(
    status: int, content_type: str, field: str, value: str, request_signature: str, parameters: str
) -> bytes | None:
    usable = status in _STATUSES and _CONTENT_TYPE.fullmatch(content_type) and _SIGNATURE.fullmatch(request_signature)
    if not usable:
        return None
    lines = (f'"@status": {status}', f'"content-type": {content_type}', f'"{field}": {value}')
    asked = f'"signature";req: {request_signature}'
    return "\n".join((*lines, asked, f'"@signature-params": {parameters}')).encode()


# --- both -------------------------------------------------------------------------------------------------------------


def _signature_lines(base: bytes, parameters: str, key: SigningKey) -> tuple[tuple[str, str], ...]:
    signature = base64.b64encode(key.sign(base)).decode()
    return ("Signature-Input", f"{LABEL}={parameters}"), ("Signature", f"{LABEL}=:{signature}:")


def digest_value(field: DigestField, digest: bytes) -> str:
    return f"{_PREFIXES[field]}:{base64.b64encode(digest).decode()}:"


def only_line(headers: Sequence[tuple[str, str]], name: str) -> str:
    """The one value of a header. Raises: BadSignature"""
    lines = [value for key, value in headers if key.lower() == name]
    if len(lines) != 1:
        raise BadSignature(f"there are {len(lines)} {name} headers, there must be exactly one: sign it once")
    return lines[0].strip(" \t")


def _require_short(headers: Sequence[tuple[str, str]]) -> None:
    """Before anything is read: long lines cost a server time, whoever sends them."""
    for name, value in headers:
        if name.lower() in _PARSED and len(value) > _MAX_LINE_CHARACTERS:
            raise BadSignature(
                f"the {name} header has {len(value)} characters, at most {_MAX_LINE_CHARACTERS} are read"
            )


def require_own_version(headers: Sequence[tuple[str, str]]) -> None:
    """Before anything else is read: another version may cover, name and order other things."""
    for name, value in headers:
        found = _TAGGED.search(value) if name.lower() == "signature-input" else None
        if found is not None:
            require_version("the request", found[1])


def signed_digest(headers: Sequence[tuple[str, str]]) -> tuple[DigestField, bytes]:
    """The one digest field and its digest. Raises: BadSignature"""
    names = {name.lower() for name, _ in headers}
    found = [field for field in DigestField if field in names]
    if len(found) > 1:
        raise BadSignature(f"there are the headers {' and '.join(found)}, there must be exactly one of them")
    field = found[0] if found else DigestField.CONTENT
    match = re.fullmatch(_PREFIXES[field] + _DIGEST, only_line(headers, field))
    if match is None:
        raise BadSignature(
            f"the {field.value} header must be one digest of the body as sent, written {_PREFIXES[field]}:base64:"
        )
    return field, base64.b64decode(match[1])


def require_time(created: int, now: int) -> None:
    """When a request says that it was made. Raises: BadSignature, unless that is about now"""
    age_s = now - created
    if age_s > MAX_AGE_S:
        raise BadSignature(
            f"the request was signed {age_s} s ago, at most {MAX_AGE_S} s are allowed: sign it again, "
            "and check this machine's clock"
        )
    if age_s < -MAX_SKEW_S:
        raise BadSignature(
            f"the request was signed {-age_s} s in the future, at most {MAX_SKEW_S} s are allowed: "
            "check this machine's clock"
        )


# --- messages ---------------------------------------------------------------------------------------------------------


def sign_message(domain: str, payload: bytes, key: SigningKey) -> bytes:
    """Ed25519 over "moiety/2 " || domain || 0 || payload; ``domain`` says what kind of thing is signed.

    Raises: MalformedMessage on a domain that is empty, too long or not printable ASCII
    """
    return key.sign(_message(domain, payload))


def verify_message(domain: str, payload: bytes, signature: bytes, verify_key: VerifyKey) -> None:
    """Return if ``signature`` is ``sign_message``'s for this domain and payload, else raise BadSignature."""
    verify_key.verify(signature, _message(domain, payload))


def _message(domain: str, payload: bytes) -> bytes:
    if not _DOMAIN.fullmatch(domain):
        raise MalformedMessage("a signature's domain must be 1 to 64 printable ASCII characters")
    return f"{TAG} {domain}\x00".encode() + payload
