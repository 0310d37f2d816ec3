"""Signed answers: who answered, and what was asked (docs/protocol.md 3, 14).

An answer carries one HTTP Message Signature (RFC 9421) that covers "@status", "content-type", one digest field and, of
the request, "signature" (the parameter ``req``). A request's signature covers its nonce, so that no answer serves a
second time and none serves another request. The digest field is "content-digest", or "sealed-head-digest" where the
body is made while it is sent: the key sealed in its head authenticates every chunk (protocol/channel/commitment.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from http_message_signatures import HTTPMessageVerifier
from http_message_signatures.algorithms import ED25519
from http_message_signatures.exceptions import HTTPMessageSignaturesException
from http_message_signatures.resolvers import MappingKeyResolver

from protocol.channel import signing
from protocol.channel.keys import SigningKey, VerifyKey, require_length
from protocol.channel.signing import (
    DIGEST_BYTES,
    LABEL,
    SIGNER,
    TAG,
    DigestField,
    HeaderLines,
    RequestToSign,
    SignatureInput,
    digest_value,
    only_line,
    require_short,
    signature_lines,
    signed_digest,
    written,
)
from protocol.errors import BadSignature

_PARAMETERS: Final = ("created", "keyid", "alg", "tag")
_FIELDS: Final = (DigestField.CONTENT, DigestField.SEALED_HEAD)


@dataclass(frozen=True)
class AnswerToSign:
    """An answer as the signature sees it: no body."""

    status_code: int
    headers: Mapping[str, str] | HeaderLines
    request: RequestToSign


@dataclass(frozen=True)
class VerifiedAnswer:
    """The statement of a valid signature; the body still has to have ``body_digest``."""

    content_type: str
    body_digest: bytes
    digest_field: DigestField


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
    headers = {"Content-Type": content_type, digest_field.title(): value}
    parameters = signing.answer_parameters(digest_field, created, key_id, TAG)
    base = parameters and signing.answer_base(status, content_type, digest_field, value, request_signature, parameters)
    if parameters and base:
        return (*headers.items(), *written(base, parameters, key))
    answer = AnswerToSign(status, headers, _asked(request_signature))
    try:
        prepared = SIGNER.prepare(
            answer,
            key_id=key_id,
            created=datetime.fromtimestamp(created, tz=UTC),
            label=LABEL,
            tag=TAG,
            covered_component_ids=_components(digest_field),
            use_existing_digest=digest_field is DigestField.CONTENT,
        )
    except (HTTPMessageSignaturesException, ValueError) as error:
        raise BadSignature(f"this answer cannot be signed: {error}") from None
    return (*headers.items(), *signature_lines(prepared, key))


def verify_answer(
    status: int, headers: Sequence[tuple[str, str]], request_signature: str, key: VerifyKey, key_id: str
) -> VerifiedAnswer:
    """Check an answer's one signature by ``key``, over the request that was sent.

    Leaves:  the body's digest to the caller
    Raises:  BadSignature
    """
    require_short(headers)
    field, body_digest = signed_digest(headers)
    if field not in _FIELDS:
        raise BadSignature(f"an answer carries {_FIELDS[0]} or {_FIELDS[1]}, not {field.value}")
    content_type = only_line(headers, "content-type")
    stated, signature = signing.read_answer(only_line(headers, "signature-input")), only_line(headers, "signature")
    value, raw = digest_value(field, body_digest), signing.read_signature(signature)
    base = stated and signing.answer_base(status, content_type, field, value, request_signature, stated.text)
    if stated and base and raw and (stated.field, stated.key_id, stated.tag) == (field, key_id, TAG):
        try:
            key.verify(raw, base)
        except BadSignature:
            raise _refused() from None
        return VerifiedAnswer(content_type, body_digest, field)
    answer = AnswerToSign(status, HeaderLines(headers), _asked(request_signature))
    try:
        _Verifier(key, key_id, field).verify(answer, max_age=None)
    except HTTPMessageSignaturesException as error:
        raise _refused(str(error)) from None
    return VerifiedAnswer(content_type, body_digest, field)


def _refused(reason: str = "") -> BadSignature:
    reason = reason or "it does not match status, type, digest and request"
    return BadSignature(f"the answer's signature is refused: {reason}")


def _asked(signature: str) -> RequestToSign:
    """Return the signed part of the request: its signature, which covers all the rest."""
    return RequestToSign("POST", "https://server.invalid/", {"Signature": signature})


def _components(field: DigestField) -> tuple[str, ...]:
    return ("@status", "content-type", field.value, '"signature";req')


class _Verifier(HTTPMessageVerifier):  # type: ignore[misc]  # the library has no types
    """The library's verifier with our fixed rules: the key is handed over only once they hold."""

    def __init__(self, key: VerifyKey, key_id: str, field: DigestField) -> None:
        super().__init__(signature_algorithm=ED25519, key_resolver=None)
        self._key = key
        self._key_id = key_id
        self._field = field

    def validate_created_and_expires(self, sig_input: SignatureInput, max_age: object = None) -> None:
        """An answer has no age: it is bound to a request that was just sent."""
        covered = {(node.value, frozenset(node.params.items())) for node in sig_input}
        plain: frozenset[tuple[str, object]] = frozenset()
        wanted = {(name, plain) for name in _components(self._field)[:-1]} | {("signature", frozenset({("req", True)}))}
        if covered != wanted:
            raise BadSignature(f"an answer's signature must cover exactly {', '.join(_components(self._field))}")
        parameters = dict(sig_input.params)
        if set(parameters) != set(_PARAMETERS) or parameters["tag"] != TAG:
            raise BadSignature(f"an answer's signature must have {', '.join(_PARAMETERS)} and the tag {TAG!r}")
        if parameters["keyid"] != self._key_id:
            raise BadSignature("the answer is signed with another key than the server's in the roster")
        self.key_resolver = MappingKeyResolver(public_keys={self._key_id: self._key.ed25519}, private_keys={})
