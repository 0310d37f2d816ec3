"""Signatures of answers and messages, and their usual form."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.channel import signing
from protocol.channel.answers import VerifiedAnswer, sign_answer, verify_answer
from protocol.channel.keys import generate_signing_key, key_id_of
from protocol.channel.signing import DigestField, sign_message, sign_request, verify_message, verify_request
from protocol.errors import BadSignature, MalformedMessage, MoietyError
from tests.kit.present import present

# --- answers ----------------------------------------------------------------------------------------------------------

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


# --- signed bytes -----------------------------------------------------------------------------------------------------

SIGNING_KEY = generate_signing_key(bytes(range(32)))
OTHER_KEY = generate_signing_key(bytes(range(1, 33)))


def test_message_round_trip() -> None:
    signature = sign_message("receipt", b"payload", SIGNING_KEY)
    assert signature == SIGNING_KEY.sign(b"moiety/2 receipt\x00payload")
    verify_message("receipt", b"payload", signature, SIGNING_KEY.public)
    verify_message("x", b"", sign_message("x", b"", SIGNING_KEY), SIGNING_KEY.public)


def test_message_refusals() -> None:
    signature = sign_message("receipt", b"payload", SIGNING_KEY)
    for domain, payload, key in (
        ("receipts", b"payload", SIGNING_KEY),
        ("receipt", b"payloae", SIGNING_KEY),
        ("receipt", b"payload\x00", SIGNING_KEY),
        ("receipt", b"payload", OTHER_KEY),
    ):
        with pytest.raises(BadSignature):
            verify_message(domain, payload, signature, key.public)
    with pytest.raises(BadSignature, match="64 bytes, found 0"):
        verify_message("receipt", b"payload", b"", SIGNING_KEY.public)


@pytest.mark.parametrize("domain", ["", "a\x00b", "a\nb", "é", "x" * 65])
def test_bad_domains_are_refused(domain: str) -> None:
    with pytest.raises(MalformedMessage, match="domain"):
        sign_message(domain, b"", SIGNING_KEY)
    with pytest.raises(MalformedMessage, match="domain"):
        verify_message(domain, b"", bytes(64), SIGNING_KEY.public)


# --- usual ------------------------------------------------------------------------------------------------------------

KEYS = {"north": KEY.public, "a" * 32: KEY.public, "no.rth": KEY.public}
NOW = 1_800_000_000
URL = "https://a.example:8441/v1/sealed"
NONCE = "0123456789abcdef-_AZ"
HeaderPairs = Sequence[tuple[str, str]]
T = TypeVar("T")

METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "post", ""])
URLS = st.one_of(
    st.sampled_from([URL, "http://127.0.0.1/x?a=1&b", "https://a.example", "https://[::1]:8441/x", "/v1/sealed", ""]),
    st.from_regex(
        r"https?://[a-zA-Z0-9.-]{1,8}(:[0-9]{0,6})?/[a-zA-Z0-9./~%_ -]{0,12}(\?[a-z=&/%]{0,6})?", fullmatch=True
    ),
)
CREATED = st.sampled_from([0, 1, NOW, NOW - 60, NOW - 61, NOW + 5, NOW + 6, -1, 10**10, 10**11, 10**20])
TIMES = st.sampled_from([0, 1, NOW, 10**10, 10**11])
NAMES = st.sampled_from(["north", "a" * 32, "no.rth", "nobody", 'no"rth', "no\\rth", ""])


_USUAL = (
    "request_parameters",
    "answer_parameters",
    "read_request",
    "read_answer",
    "read_signature",
    "request_base",
    "answer_base",
)


def by_the_library(work: Callable[[], T]) -> T | str:
    """Nothing is of the usual form: the library does all."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _USUAL:
            patch.setattr(signing, name, lambda *_: None)
        return outcome(work)


def outcome(work: Callable[[], T]) -> T | str:
    """The result: a value, or a refusal's kind."""
    try:
        return work()
    except MoietyError as refused:
        return refused.code


def same(work: Callable[[], T]) -> T | str:
    found = outcome(work)
    assert found == by_the_library(work)
    return found


@settings(max_examples=60)
@given(METHODS, URLS, CREATED, NAMES, st.sampled_from(DigestField))
def test_a_request_is_signed_and_accepted_as_by_the_library(
    method: str, url: str, created: int, name: str, field: DigestField
) -> None:
    def signed() -> HeaderPairs:
        return sign_request(method, url, DIGEST, KEY, name, created=created, nonce=NONCE, digest_field=field)

    headers = same(signed)
    if isinstance(headers, str):
        return
    same(lambda: verify_request(method, url, headers, KEYS.get, NOW))
    same(lambda: verify_request(method, URL, headers, KEYS.get, NOW))


@settings(max_examples=50)
@given(
    st.integers(90, 610), st.sampled_from(["application/json", "text/plain; charset=utf-8", "A/b", ""]), TIMES, NAMES
)
def test_an_answer_is_signed_and_accepted_as_by_the_library(status: int, kind: str, created: int, name: str) -> None:
    asked = dict(sign_request("GET", URL, DIGEST, OTHER, "c", created=1, nonce=NONCE))["Signature"]
    for request in (asked, "moiety=:AAAA:", f" {asked}"):

        def signed(request: str = request) -> HeaderPairs:
            return sign_answer(status, kind, DIGEST, KEY, name, created=created, request_signature=request)

        headers = same(signed)
        if isinstance(headers, str):
            continue
        for found_status, found_request in ((status, request), (status + 1, request), (status, asked)):
            same(
                lambda status=found_status, request=found_request, headers=headers: verify_answer(  # type: ignore[misc]
                    status, headers, request, KEY.public, name
                )
            )


def edits(value: str) -> st.SearchStrategy[str]:
    """A line with a character dropped, doubled or replaced, or some blanks in it."""
    places = st.integers(0, len(value) - 1)
    put = st.sampled_from(["", " ", '"', ";", "A", "=", "0", ",", ":", "\t", "\n", "é"])
    return st.builds(lambda place, put: value[:place] + put + value[place + 1 :], places, put)


USUAL_REQUEST = sign_request("POST", URL, DIGEST, KEY, "north", created=NOW, nonce=NONCE)
ANSWER = sign_answer(
    200, "application/json", DIGEST, KEY, "north", created=NOW, request_signature=dict(USUAL_REQUEST)["Signature"]
)


@settings(max_examples=100)
@given(st.data())
def test_an_altered_line_is_accepted_or_refused_as_by_the_library(data: st.DataObject) -> None:
    for made, verify in (
        (USUAL_REQUEST, lambda headers: verify_request("POST", URL, headers, KEYS.get, NOW)),
        (ANSWER, lambda headers: verify_answer(200, headers, dict(USUAL_REQUEST)["Signature"], KEY.public, "north")),
    ):
        name, value = data.draw(st.sampled_from(made))
        headers = [(key, data.draw(edits(value)) if key == name else old) for key, old in made]
        same(lambda headers=headers, verify=verify: verify(headers))  # type: ignore[misc]


def test_what_is_sent_is_of_the_usual_form() -> None:
    """Else the library would do all the work, and nobody would notice."""
    stated = dict(USUAL_REQUEST)["Signature-Input"]
    asked = present(signing.read_request(stated))
    assert f"moiety={asked.text}" == stated
    assert (asked.field, asked.created, asked.key_id, asked.nonce) == ("content-digest", NOW, "north", NONCE)
    assert signing.request_base("POST", URL, asked.field, dict(USUAL_REQUEST)["Content-Digest"], asked.text)
    assert signing.read_answer(dict(ANSWER)["Signature-Input"]) is not None
    assert signing.read_signature(dict(ANSWER)["Signature"]) is not None


def test_a_signature_with_spare_bits_is_left_to_the_library() -> None:
    value = dict(USUAL_REQUEST)["Signature"]
    last = value[-4]
    other = chr(ord(last) + 1)
    assert base64.b64decode(value[8:-1]) == base64.b64decode(f"{value[8:-4]}{other}==")
    assert signing.read_signature(f"{value[:-4]}{other}==:") is None
