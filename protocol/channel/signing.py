"""Signed requests and signed messages (docs/protocol.md 3).

The bytes under a signature of the usual form, written down instead of derived (RFC 9421, 2.5).

Everything that Moiety sends is signed in one form: fixed components, fixed parameters in one order, an address without
percent signs. For that form the signature's base is a few lines of text, which are put together here. Whatever is
written otherwise, and would be as valid, is left to the library: every function answers None for it. What is made and
accepted is the same either way (tests/unit/wire/test_answers.py compares the two), in a tenth of the time.

A request carries one HTTP Message Signature (RFC 9421) with Ed25519. What it covers is fixed here, not chosen by the
sender: "@method", "@target-uri", one digest field, and the parameters created, keyid, alg, nonce and tag. The digest
field is "content-digest" (RFC 9530, sha-256); a contribution's is "sealed-digest" and a masked sum's "sealed-head-
digest", which hash otherwise (protocol/channel/commitment.py) and so have names of their own. The body is not seen: the
verified digest comes back, and the caller compares it with that of the bytes it streamed.
Nonces are the caller's to store, for at least MAX_AGE_S + MAX_SKEW_S. The time is an argument.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Protocol

from http_message_signatures import HTTPMessageSigner, HTTPMessageVerifier, PreparedSignature
from http_message_signatures.algorithms import ED25519
from http_message_signatures.exceptions import HTTPMessageSignaturesException
from http_message_signatures.resolvers import MappingKeyResolver

from protocol.channel.keys import SigningKey, VerifyKey, require_length
from protocol.errors import BadSignature, MalformedMessage
from protocol.parameters import PROTOCOL_VERSION, require_version

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


TAG: Final = PROTOCOL_VERSION
COMPONENTS: Final = ("@method", "@target-uri", "content-digest")
"""The components that the signature covers; the last place is that of the digest field."""
DIGEST_BYTES: Final = 32
MAX_AGE_S: Final = 60
MAX_SKEW_S: Final = 5

_NOBODYS_KEY: Final = SigningKey.from_bytes(bytes(32)).public
"""Tried for a key id that nobody has, so that trying takes as long; what it signed is refused all the same."""
_MAX_LINE_CHARACTERS: Final = 1024
LABEL: Final = "moiety"
SIGNER: Final = HTTPMessageSigner(signature_algorithm=ED25519)
_PARAMETERS: Final = ("created", "keyid", "alg", "nonce", "tag")
_NONCE: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
_KEY_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_DOMAIN: Final = re.compile(r"[\x20-\x7e]{1,64}")
_TAGGED: Final = re.compile(r';tag="([^"]{1,64})"')
_DIGEST: Final = ":([A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=):"


class DigestField(StrEnum):
    """The header field that holds a request's digest, and so how the body is hashed."""

    CONTENT = "content-digest"
    SEALED = "sealed-digest"
    SEALED_HEAD = "sealed-head-digest"


_PARSED: Final = frozenset({"signature", "signature-input", *DigestField})
_PREFIXES: Final = {DigestField.CONTENT: "sha-256=", DigestField.SEALED: "", DigestField.SEALED_HEAD: ""}


class HeaderLines:
    """Header lines in wire order, as the library reads them; repeated names stay apart."""

    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        self._lines = tuple(lines)

    def items(self) -> tuple[tuple[str, str], ...]:
        return self._lines


@dataclass(frozen=True)
class RequestToSign:
    """A request as the signature sees it: no body. ``url`` is absolute, as the other side will write it."""

    method: str
    url: str
    headers: Mapping[str, str] | HeaderLines


@dataclass(frozen=True)
class VerifiedRequest:
    """The statement of a valid signature; the body still has to have ``body_digest``, and the nonce to be new."""

    key_id: str
    nonce: str
    created: int
    body_digest: bytes
    digest_field: DigestField = DigestField.CONTENT


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
    Source: RFC 9421; RFC 9530
    """
    require_length("a body digest", body_digest, DIGEST_BYTES)
    _require_names(nonce, key_id)
    value = digest_value(digest_field, body_digest)
    headers = {digest_field.title(): value}
    parameters = request_parameters(digest_field, created, key_id, nonce, TAG)
    base = parameters and request_base(method, url, digest_field, value, parameters)
    if parameters and base:
        return (*headers.items(), *written(base, parameters, key))
    try:
        prepared = _prepared(RequestToSign(method, url, headers), key_id, created, nonce, digest_field)
    except (HTTPMessageSignaturesException, ValueError, OverflowError) as error:
        raise MalformedMessage(f"this request cannot be signed: {error}") from None
    return (*headers.items(), *signature_lines(prepared, key))


def _prepared(
    request: RequestToSign, key_id: str, created: int, nonce: str, digest_field: DigestField
) -> PreparedSignature:
    """Prepare the signature base with the library, for a request that is not of the usual form."""
    return SIGNER.prepare(
        request,
        key_id=key_id,
        created=datetime.fromtimestamp(created, tz=UTC),
        nonce=nonce,
        label=LABEL,
        tag=TAG,
        covered_component_ids=_components(digest_field),
        use_existing_digest=digest_field is DigestField.CONTENT,
    )


def signature_lines(prepared: PreparedSignature, key: SigningKey) -> tuple[tuple[str, str], ...]:
    """The two fields of a signature.

    The library's own ``apply`` parses what it has just written and builds the same bytes again, in case the message
    changed meanwhile: half of what a signature takes.
    """
    return written(prepared.signature_base, prepared.signature_params, key)


def written(base: bytes, parameters: str, key: SigningKey) -> tuple[tuple[str, str], ...]:
    """The two fields, from what is signed and the parameters in it."""
    signature = base64.b64encode(key.sign(base)).decode()
    return ("Signature-Input", f"{LABEL}={parameters}"), ("Signature", f"{LABEL}=:{signature}:")


def _require_names(nonce: str, key_id: str) -> None:
    if not _NONCE.fullmatch(nonce) or not _KEY_ID.fullmatch(key_id):
        raise MalformedMessage(
            "a request needs a nonce of 16 to 64 letters, digits, '-' or '_' and a printable key id of up to 128"
        )


def verify_request(
    method: str,
    url: str,
    headers: Sequence[tuple[str, str]],
    keys: Callable[[str], VerifyKey | None],
    now: int,
    *,
    max_age_s: int = MAX_AGE_S,
    max_skew_s: int = MAX_SKEW_S,
) -> VerifiedRequest:
    """Check the one signature of a request against ``keys`` (key id -> key, None if unknown) at unix time ``now``.

    Checks:  exactly one signature, over exactly the fixed components and parameters; created between
             ``now - max_age_s`` and ``now + max_skew_s``; the signature itself
    Leaves:  the body's digest and the nonce's freshness to the caller
    Hides:   whether a key id is known: an unknown one costs as much and is refused with the same words as a signature
             that does not match
    Raises:  BadSignature; OtherVersion, when the signature's tag names another version of the protocol
    """
    require_short(headers)
    require_own_version(headers)
    field, body_digest = signed_digest(headers)
    stated_line, signature_line = only_line(headers, "signature-input"), only_line(headers, "signature")
    asked, signature = read_request(stated_line), read_signature(signature_line)
    base = asked and request_base(method, url, field, digest_value(field, body_digest), asked.text)
    if asked and base and signature and (asked.field, asked.tag) == (field, TAG):
        require_time(asked.created, now, max_age_s, max_skew_s)
        _require_signed(base, signature, keys(asked.key_id))
        return VerifiedRequest(asked.key_id, asked.nonce, asked.created, body_digest, field)
    verifier = _Verifier(keys, field, now, max_age_s, max_skew_s)
    stated = verifier.parameters_of(RequestToSign(method, url, HeaderLines(headers)))
    return VerifiedRequest(stated["keyid"], stated["nonce"], stated["created"], body_digest, field)


def _require_signed(base: bytes, signature: bytes, key: VerifyKey | None) -> None:
    """Raises: BadSignature; after as long, and in the same words, where there is no such key"""
    try:
        (key or _NOBODYS_KEY).verify(signature, base)
    except BadSignature:
        raise _refused() from None
    if key is None:
        raise _refused()


def digest_value(field: DigestField, digest: bytes) -> str:
    """A digest field's value."""
    return f"{_PREFIXES[field]}:{base64.b64encode(digest).decode()}:"


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


def _refused(reason: str = "") -> BadSignature:
    reason = reason or "the signature does not match the method, address, content digest, parameters and key id"
    return BadSignature(
        f"the request's signature is refused: {reason}; sign exactly this request with the key in the roster"
    )


def only_line(headers: Sequence[tuple[str, str]], name: str) -> str:
    """The one value of a header. Raises: BadSignature"""
    lines = [value for key, value in headers if key.lower() == name]
    if len(lines) != 1:
        raise BadSignature(f"there are {len(lines)} {name} headers, there must be exactly one: sign it once")
    return lines[0].strip(" \t")


def require_short(headers: Sequence[tuple[str, str]]) -> None:
    """Before anything is parsed: 30 kB of structured fields cost a server 0.1 s, whoever sends them."""
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


def _components(field: DigestField) -> tuple[str, ...]:
    return (*COMPONENTS[:-1], field.value)


class _Component(Protocol):
    value: object
    params: Mapping[str, object]


class SignatureInput(Protocol):
    """The library's parsed Signature-Input member."""

    params: Mapping[str, Any]

    def __iter__(self) -> Iterator[_Component]: ...


class _Verifier(HTTPMessageVerifier):  # type: ignore[misc]  # the library has no types
    """The library's verifier with our fixed rules and the caller's clock in place of its own.

    The library calls ``validate_created_and_expires`` before it looks a key up; the key is handed over only there, so
    a signature that skipped these rules would find no key.
    """

    def __init__(
        self,
        keys: Callable[[str], VerifyKey | None],
        digest_field: DigestField,
        now: int,
        max_age_s: int,
        max_skew_s: int,
    ) -> None:
        super().__init__(signature_algorithm=ED25519, key_resolver=None)
        self._keys = keys
        self._components = _components(digest_field)
        self._now = now
        self._max_age_s = max_age_s
        self._max_skew_s = max_skew_s
        self.known = False

    def validate_created_and_expires(self, sig_input: SignatureInput, max_age: object = None) -> None:
        _check_covered([(node.value, dict(node.params)) for node in sig_input], self._components)
        parameters = dict(sig_input.params)
        _check_parameters(parameters)
        require_time(parameters["created"], self._now, self._max_age_s, self._max_skew_s)
        key_id = parameters["keyid"]
        found = self._keys(key_id)
        self.known, key = found is not None, found or _NOBODYS_KEY
        self.key_resolver = MappingKeyResolver(public_keys={key_id: key.ed25519}, private_keys={})

    def parameters_of(self, request: RequestToSign) -> dict[str, Any]:
        """Return the parameters of a request's one signature, once it is checked. Raises: BadSignature"""
        try:
            (result,) = self.verify(request, max_age=None)
        except HTTPMessageSignaturesException as error:
            raise _refused(str(error)) from None
        if not self.known:
            raise _refused()
        stated: dict[str, Any] = result.parameters
        return stated


def require_time(created: int, now: int, max_age_s: int = MAX_AGE_S, max_skew_s: int = MAX_SKEW_S) -> None:
    """When a request says that it was made. Raises: BadSignature, unless that is about now"""
    age_s = now - created
    if age_s > max_age_s:
        raise BadSignature(
            f"the request was signed {age_s} s ago, at most {max_age_s} s are allowed: sign it again, "
            "and check this machine's clock"
        )
    if age_s < -max_skew_s:
        raise BadSignature(
            f"the request was signed {-age_s} s in the future, at most {max_skew_s} s are allowed: "
            "check this machine's clock"
        )


def _check_covered(components: list[tuple[object, dict[str, object]]], wanted: tuple[str, ...]) -> None:
    names = [name for name, parameters in components if not parameters]
    if len(components) != len(wanted) or set(names) != set(wanted):
        raise BadSignature(f"the signature must cover exactly {', '.join(wanted)}, each without parameters")


def _check_parameters(parameters: dict[str, Any]) -> None:
    if set(parameters) != set(_PARAMETERS):
        raise BadSignature(f"the signature must have exactly the parameters {', '.join(_PARAMETERS)}")
    if parameters["tag"] != TAG:
        raise BadSignature(f"the signature's tag must be {TAG!r}: it was made for something else or another version")
    if not _NONCE.fullmatch(parameters["nonce"]) or not _KEY_ID.fullmatch(parameters["keyid"]):
        raise BadSignature(
            "the signature needs a nonce of 16 to 64 letters, digits, '-' or '_' and a printable keyid of up to 128"
        )
