"""Another version of the protocol is named, with the release to install, before anything else is read."""

from __future__ import annotations

import pytest

from protocol.channel.keys import generate_signing_key
from protocol.channel.signing import sign_request, verify_request
from protocol.errors import BadSignature, MalformedMessage, OtherVersion, Unavailable
from protocol.messages.control import Signed, Study
from protocol.parameters import PROTOCOL_VERSION, first_release, is_version, other_version, require_version
from tests.unit.parties import study

KEY = generate_signing_key(bytes(32))
NOW = 1_800_000_000


@pytest.mark.parametrize(
    ("version", "release"), [("moiety/1", "0.1.0"), ("moiety/2", "0.2.0"), ("moiety/37", "0.37.0")]
)
def test_every_version_has_a_first_release_those_to_come_too(version: str, release: str) -> None:
    assert first_release(version) == release


@pytest.mark.parametrize("text", ["moiety/0", "moiety/", "moiety/1x", "other/1", "", 1, None])
def test_what_is_no_version_is_left_to_others(text: object) -> None:
    assert not is_version(text)
    require_version("the request", text)


def test_the_error_names_both_versions_and_what_to_install_and_asks_to_wait() -> None:
    error = other_version("this study", "moiety/3")
    assert isinstance(error, Unavailable)
    for part in ("moiety/3", "moiety/2", "0.3.0", "0.2.0", "Nothing was changed"):
        assert part in error.detail


@pytest.mark.parametrize("found", ["moiety/1", "moiety/3"])
def test_a_message_of_another_version_is_named_whatever_else_it_holds(found: str) -> None:
    body = Signed[Study](message=study("a" * 64)).canonical()
    other = body.replace(f'"{PROTOCOL_VERSION}"'.encode(), f'"{found}","new_field":1'.encode())
    with pytest.raises(OtherVersion, match=f"of protocol version {found}"):
        Signed[Study].parse(other)


def test_a_study_without_a_version_of_the_protocol_is_malformed() -> None:
    body = Signed[Study](message=study("a" * 64)).canonical()
    with pytest.raises(MalformedMessage, match="version"):
        Signed[Study].parse(body.replace(f'"{PROTOCOL_VERSION}"'.encode(), b"7"))


@pytest.mark.parametrize("found", ["moiety/1", "moiety/3"])
def test_a_request_of_another_version_is_named_before_its_signature_is_read(found: str) -> None:
    """A newer one may cover other components, carry other parameters and another digest: none of that is looked at."""
    signed = sign_request("GET", "https://a.example/x", bytes(32), KEY, "north", created=NOW, nonce="n" * 24)
    headers = [(name, value.replace(PROTOCOL_VERSION, found)) for name, value in signed]
    newer = [(name, value.replace("@target-uri", "@path")) for name, value in headers if name != "Content-Digest"]
    for lines in (headers, newer):
        with pytest.raises(OtherVersion, match=f"the request is of protocol version {found}"):
            verify_request("GET", "https://a.example/x", lines, lambda _: KEY.public, NOW)


def test_a_tag_that_is_no_version_is_a_bad_signature() -> None:
    signed = sign_request("GET", "https://a.example/x", bytes(32), KEY, "north", created=NOW, nonce="n" * 24)
    headers = [(name, value.replace(PROTOCOL_VERSION, "other")) for name, value in signed]
    with pytest.raises(BadSignature, match="tag must be"):
        verify_request("GET", "https://a.example/x", headers, lambda _: KEY.public, NOW)
