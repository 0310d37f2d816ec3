"""Signatures of the usual form: what is made, accepted and refused is what the library makes, accepts and refuses."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.channel import signing
from protocol.channel.answers import sign_answer, verify_answer
from protocol.channel.keys import generate_signing_key
from protocol.channel.signing import DigestField, sign_request, verify_request
from protocol.errors import MoietyError

KEY, OTHER = generate_signing_key(bytes(32)), generate_signing_key(b"o" * 32)
KEYS = {"north": KEY.public, "a" * 32: KEY.public, "no.rth": KEY.public}
DIGEST = bytes(range(32))
NOW = 1_800_000_000
URL = "https://a.example:8441/v1/sealed"
NONCE = "0123456789abcdef-_AZ"
Headers = Sequence[tuple[str, str]]
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
    """What comes of it: a value, or a refusal's kind."""
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
    def signed() -> Headers:
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

        def signed(request: str = request) -> Headers:
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


REQUEST = sign_request("POST", URL, DIGEST, KEY, "north", created=NOW, nonce=NONCE)
ANSWER = sign_answer(
    200, "application/json", DIGEST, KEY, "north", created=NOW, request_signature=dict(REQUEST)["Signature"]
)


@settings(max_examples=100)
@given(st.data())
def test_an_altered_line_is_accepted_or_refused_as_by_the_library(data: st.DataObject) -> None:
    for made, verify in (
        (REQUEST, lambda headers: verify_request("POST", URL, headers, KEYS.get, NOW)),
        (ANSWER, lambda headers: verify_answer(200, headers, dict(REQUEST)["Signature"], KEY.public, "north")),
    ):
        name, value = data.draw(st.sampled_from(made))
        headers = [(key, data.draw(edits(value)) if key == name else old) for key, old in made]
        same(lambda headers=headers, verify=verify: verify(headers))  # type: ignore[misc]


def test_what_is_sent_is_of_the_usual_form() -> None:
    """Else the library would do all the work, and nobody would notice."""
    stated = dict(REQUEST)["Signature-Input"]
    asked = signing.read_request(stated)
    assert asked is not None
    assert f"moiety={asked.text}" == stated
    assert (asked.field, asked.created, asked.key_id, asked.nonce) == ("content-digest", NOW, "north", NONCE)
    assert signing.request_base("POST", URL, asked.field, dict(REQUEST)["Content-Digest"], asked.text)
    assert signing.read_answer(dict(ANSWER)["Signature-Input"]) is not None
    assert signing.read_signature(dict(ANSWER)["Signature"]) is not None


def test_a_signature_with_spare_bits_is_left_to_the_library() -> None:
    value = dict(REQUEST)["Signature"]
    last = value[-4]
    other = chr(ord(last) + 1)
    assert base64.b64decode(value[8:-1]) == base64.b64decode(f"{value[8:-4]}{other}==")
    assert signing.read_signature(f"{value[:-4]}{other}==:") is None
