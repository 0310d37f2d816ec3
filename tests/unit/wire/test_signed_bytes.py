"""Signatures over messages: bound to the kind of message and to every byte (docs/protocol.md 3)."""

from __future__ import annotations

import pytest

from protocol.channel.keys import generate_signing_key
from protocol.channel.signing import sign_message, verify_message
from protocol.errors import BadSignature, MalformedMessage

KEY = generate_signing_key(bytes(range(32)))
OTHER = generate_signing_key(bytes(range(1, 33)))


def test_message_round_trip() -> None:
    signature = sign_message("receipt", b"payload", KEY)
    assert signature == KEY.sign(b"moiety/2 receipt\x00payload")
    verify_message("receipt", b"payload", signature, KEY.public)
    verify_message("x", b"", sign_message("x", b"", KEY), KEY.public)


def test_message_refusals() -> None:
    signature = sign_message("receipt", b"payload", KEY)
    for domain, payload, key in (
        ("receipts", b"payload", KEY),
        ("receipt", b"payloae", KEY),
        ("receipt", b"payload\x00", KEY),
        ("receipt", b"payload", OTHER),
    ):
        with pytest.raises(BadSignature):
            verify_message(domain, payload, signature, key.public)
    with pytest.raises(BadSignature, match="64 bytes, found 0"):
        verify_message("receipt", b"payload", b"", KEY.public)


@pytest.mark.parametrize("domain", ["", "a\x00b", "a\nb", "é", "x" * 65])
def test_bad_domains_are_refused(domain: str) -> None:
    with pytest.raises(MalformedMessage, match="domain"):
        sign_message(domain, b"", KEY)
    with pytest.raises(MalformedMessage, match="domain"):
        verify_message(domain, b"", bytes(64), KEY.public)
