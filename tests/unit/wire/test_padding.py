"""The padding of letters: what their length shows and what it does not."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

from protocol.errors import MalformedMessage
from protocol.wire.channel.padding import (
    LENGTH_BYTES,
    NUMBER_CHARACTERS,
    pad,
    require_shown_length,
    shortened,
    shown_length,
    unpad,
)
from protocol.wire.messages import Message


class Letter(Message):
    KIND: ClassVar[str] = "letter"
    name: str = ""
    numbers: tuple[int, ...] = ()
    switch: bool = False
    half: float | None = None


@pytest.mark.parametrize(
    "other",
    [
        Letter(numbers=(9, 9)),
        Letter(numbers=(32, 2**63)),
        Letter(numbers=(0, -(2**63)), switch=True),
        Letter(numbers=(1, 2), half=-2.2250738585072014e-308),
    ],
)
def test_no_number_and_no_switch_shows(other: Letter) -> None:
    first = Letter(numbers=(1, 1))
    assert shown_length(other) == shown_length(first)
    assert len(pad(other.canonical(), shown_length(other))) == shown_length(first)


def test_names_and_how_many_entries_there_are_show() -> None:
    plain = shown_length(Letter())
    assert shown_length(Letter(name="abc")) == plain + 3
    assert shown_length(Letter(name='"')) == plain + len(json.dumps('"')) - 2
    assert shown_length(Letter(numbers=(1,))) == plain + NUMBER_CHARACTERS
    assert shown_length(Letter(numbers=(1, 2, 3))) == plain + 3 * NUMBER_CHARACTERS + 2


def test_a_number_wider_than_all_others_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="25 characters, at most 24"):
        shown_length(Letter(numbers=(10**24,)))


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


def test_a_letter_of_another_length_is_refused() -> None:
    require_shown_length(bytes(7), 7)
    with pytest.raises(MalformedMessage, match="has 8 bytes inside its seal, its kind and content take 7"):
        require_shown_length(bytes(8), 7)


@pytest.mark.parametrize("text", ["", "plain", 'a "quoted" text', "\x1b[31mred", "naïve", "𝔽𝔽𝔽𝔽𝔽𝔽𝔽𝔽", "\u202e" * 30])
@pytest.mark.parametrize("most", [2, 3, 10, 40])
def test_a_shortened_text_fits_and_is_the_longest_that_does(text: str, most: int) -> None:
    kept = shortened(text, most)
    assert text.startswith(kept)
    assert len(json.dumps(kept)) <= most
    if kept != text:
        assert len(json.dumps(text[: len(kept) + 1])) > most
