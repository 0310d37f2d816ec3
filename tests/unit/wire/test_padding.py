"""The padding of letters: what their length shows and what it does not."""

from __future__ import annotations

import json

import pytest

from protocol.channel.encoding import LENGTH_BYTES, pad, require_written_alike, shortened, unpad
from protocol.errors import MalformedMessage


@pytest.mark.parametrize("content", [b"", b"x", b"\x00\x00", bytes(range(96))])
def test_padding_comes_off_again(content: bytes) -> None:
    assert unpad(pad(content, LENGTH_BYTES + 96)) == content


def test_content_longer_than_its_kind_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="has 5 bytes, its kind takes 4"):
        pad(b"12345", LENGTH_BYTES + 4)


@pytest.mark.parametrize(
    "padded",
    [
        b"",
        b"\x00\x00",
        (5).to_bytes(4, "big") + b"1234",
        (2**32 - 1).to_bytes(4, "big") + b"1234",
        (2).to_bytes(4, "big") + b"1234",
        (2).to_bytes(4, "big") + b"12\x00\x01",
    ],
)
def test_what_no_padding_leaves_is_refused(padded: bytes) -> None:
    with pytest.raises(MalformedMessage, match="must be zeros"):
        unpad(padded)


def test_a_letter_of_another_length_or_with_fewer_fields_is_refused() -> None:
    require_written_alike(7, 7, whole=True)
    for length, whole in ((8, True), (7, False)):
        with pytest.raises(MalformedMessage, match=f"has {length} bytes inside its seal, its kind and content take 7"):
            require_written_alike(length, 7, whole)


@pytest.mark.parametrize("text", ["", "plain", 'a "quoted" text', "\x1b[31mred", "naïve", "𝔽𝔽𝔽𝔽𝔽𝔽𝔽𝔽", "\u202e" * 30])
@pytest.mark.parametrize("most", [2, 3, 10, 40])
def test_a_shortened_text_fits_and_is_the_longest_that_does(text: str, most: int) -> None:
    kept = shortened(text, most)
    assert text.startswith(kept)
    assert len(json.dumps(kept)) <= most
    if kept != text:
        assert len(json.dumps(text[: len(kept) + 1])) > most
