"""Other parties' words as they may be shown."""

from __future__ import annotations

import sys

import pytest

from protocol.errors import MalformedMessage
from protocol.text import MOST_CHARACTERS, printable, printable_lines, printable_values


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("Spital Zürich, 3.5 % – 'ok' 𝔽", "Spital Zürich, 3.5 % – 'ok' 𝔽"),
        ("\x1b[31mred\x1b[0m", "\ufffd[31mred\ufffd[0m"),
        ("\x1b]0;title\x07", "\ufffd]0;title\ufffd"),
        ("\x9b2J", "\ufffd2J"),
        ("one\ntwo\r\nthree\tfour", "one two  three four"),
        ("in\u202eorder\u2066 of\u200f\u061c", "in\ufffdorder\ufffd of\ufffd\ufffd"),
        ("zero\u200bwidth\ufeff", "zero\ufffdwidth\ufffd"),
        ("tags\U000e0041", "tags\ufffd"),
        ("line\u2028 and\u2029 page\x0c", "line  and  page "),
        ("\ud800 alone", "\ufffd alone"),
        ("private \ue000", "private \ufffd"),
        ("a\u00a0b\u3000c", "a b c"),
    ],
)
def test_what_a_terminal_would_act_on_is_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_every_character_there_is() -> None:
    shown = printable("".join(map(chr, range(sys.maxunicode + 1))), sys.maxunicode + 1)
    assert shown.isprintable()
    assert len(shown) == sys.maxunicode + 1


def test_the_length_is_bounded() -> None:
    assert printable("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS
    cut = printable("x" * 10**7)
    assert len(cut) == MOST_CHARACTERS
    assert cut.endswith("x ...")
    assert printable("abcdefgh", 6) == "ab ..."


def test_this_programs_own_lines_stay() -> None:
    assert printable_lines("columns:\n  - age\x1b[1m\n  + weight") == "columns:\n  - age\ufffd[1m\n  + weight"
    assert len(printable_lines("x\n" * 10**6)) <= 2**16


def test_texts_among_values() -> None:
    assert printable_values({"detail": "a\x07", "round": 3, "listed": None}) == {
        "detail": "a\ufffd",
        "round": 3,
        "listed": None,
    }


def test_every_error_shows_printable_words_only() -> None:
    """Errors quote what was found: the one place where all of it passes."""
    error = MalformedMessage("found '\x1b[2J\u202e'")
    assert error.detail == str(error) == "found '\ufffd[2J\ufffd'"
