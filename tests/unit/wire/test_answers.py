"""An answer's signature covers status, type, digest and the request; nothing less, nothing else, nobody else's."""

from __future__ import annotations

import base64

import pytest

from protocol.channel.answers import VerifiedAnswer, sign_answer, verify_answer
from protocol.channel.keys import generate_signing_key, key_id_of
from protocol.channel.signing import DigestField, sign_request
from protocol.errors import BadSignature

KEY, OTHER = generate_signing_key(bytes(32)), generate_signing_key(b"o" * 32)
KEY_ID = key_id_of(KEY.public.to_bytes())
DIGEST = bytes(range(32))
TYPE = "application/octet-stream"
Headers = list[tuple[str, str]]


def asked(nonce: str = "n" * 24) -> str:
    """The Signature field of a request."""
    return dict(sign_request("POST", "https://a.example/x", DIGEST, OTHER, "c", created=1, nonce=nonce))["Signature"]


REQUEST = asked()


def signed(field: DigestField = DigestField.CONTENT, status: int = 200) -> Headers:
    made = sign_answer(status, TYPE, DIGEST, KEY, KEY_ID, created=1, request_signature=REQUEST, digest_field=field)
    return list(made)


def verify(headers: Headers, status: int = 200, request: str = REQUEST) -> VerifiedAnswer:
    return verify_answer(status, headers, request, KEY.public, KEY_ID)


@pytest.mark.parametrize("field", [DigestField.CONTENT, DigestField.SEALED_HEAD])
def test_a_signed_answer_is_accepted_whatever_else_it_carries(field: DigestField) -> None:
    headers = [("Date", "today"), *signed(field), ("X-Proxy", "here")]
    assert verify(headers) == VerifiedAnswer(TYPE, DIGEST, field)


def test_an_old_answer_does_not_serve_another_request() -> None:
    with pytest.raises(BadSignature, match="does not match status, type, digest and request"):
        verify(signed(), request=asked("m" * 24))


def test_another_status_type_or_digest_is_refused() -> None:
    with pytest.raises(BadSignature):
        verify(signed(), status=404)
    for name, value in (
        ("Content-Type", "application/json"),
        ("Content-Digest", f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"),
    ):
        changed = [(key, value if key == name else old) for key, old in signed()]
        with pytest.raises(BadSignature):
            verify(changed)


@pytest.mark.parametrize("name", ["Content-Type", "Content-Digest", "Signature-Input", "Signature"])
def test_what_is_missing_or_there_twice_is_refused(name: str) -> None:
    headers = signed()
    with pytest.raises(BadSignature):
        verify([line for line in headers if line[0] != name])
    with pytest.raises(BadSignature):
        verify([*headers, *[line for line in headers if line[0] == name]])


def test_nobody_elses_key_and_no_other_key_id_is_taken() -> None:
    theirs = sign_answer(200, TYPE, DIGEST, OTHER, KEY_ID, created=1, request_signature=REQUEST)
    with pytest.raises(BadSignature):
        verify(list(theirs))
    renamed = sign_answer(200, TYPE, DIGEST, KEY, "someone", created=1, request_signature=REQUEST)
    with pytest.raises(BadSignature, match="another key than the server's"):
        verify(list(renamed))


def by_hand(covered: str, parameters: str) -> Headers:
    """A valid Ed25519 signature over something else than agreed."""
    values = {
        '"@status"': "200",
        '"content-type"': TYPE,
        '"content-digest"': dict(signed())["Content-Digest"],
        '"signature";req': REQUEST,
    }
    lines = [f"{name}: {values[name]}" for name in covered.split(" ")]
    stated = f"({covered}){parameters}"
    base = "\n".join([*lines, f'"@signature-params": {stated}'])
    value = base64.b64encode(KEY.sign(base.encode())).decode()
    kept = [line for line in signed() if not line[0].startswith("Signature")]
    return [*kept, ("Signature-Input", f"moiety={stated}"), ("Signature", f"moiety=:{value}:")]


WHOLE = '"@status" "content-type" "content-digest" "signature";req'
PARAMETERS = f';created=1;keyid="{KEY_ID}";alg="ed25519";tag="moiety/2"'


def test_a_signature_by_hand_over_all_of_it_is_accepted() -> None:
    assert verify(by_hand(WHOLE, PARAMETERS)).body_digest == DIGEST


@pytest.mark.parametrize("left_out", ['"@status"', '"content-type"', '"content-digest"', '"signature";req'])
def test_a_signature_over_less_is_refused(left_out: str) -> None:
    covered = " ".join(part for part in WHOLE.split(" ") if part != left_out)
    with pytest.raises(BadSignature, match="must cover exactly"):
        verify(by_hand(covered, PARAMETERS))


@pytest.mark.parametrize(
    "parameters",
    [PARAMETERS.replace("moiety/2", "moiety/1"), PARAMETERS.replace(";created=1", ""), PARAMETERS + ';nonce="x"'],
)
def test_another_tag_or_other_parameters_are_refused(parameters: str) -> None:
    with pytest.raises(BadSignature, match="and the tag"):
        verify(by_hand(WHOLE, parameters))


def test_a_requests_own_digest_field_is_none_of_an_answers() -> None:
    sealed = [("Sealed-Digest" if name == "Content-Digest" else name, value) for name, value in signed()]
    sealed = [(name, value.removeprefix("sha-256=")) for name, value in sealed]
    with pytest.raises(BadSignature, match="not sealed-digest"):
        verify(sealed)


def test_a_request_signature_that_no_header_can_hold_cannot_be_covered() -> None:
    with pytest.raises(BadSignature, match="cannot be signed"):
        sign_answer(200, TYPE, DIGEST, KEY, KEY_ID, created=1, request_signature="a\nb")
