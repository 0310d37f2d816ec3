"""The reference of the study file is what the models say, and every key has its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.reference.study_file import TABLES, WORDS, keys_of, page


def test_the_page_is_as_the_code_has_it() -> None:
    assert Path("docs/study_file.md").read_text(encoding="utf-8") == page(), "run: python -m harness.reference"


@pytest.mark.parametrize("name", list(TABLES))
def test_every_key_has_words_and_no_word_is_left_over(name: str) -> None:
    assert set(WORDS[name]) == set(keys_of(name))


def test_limits_and_choices_are_named() -> None:
    text = page()
    assert "| `rounds` | whole number, at least 0 | required |" in text
    assert "| `protection` | `shares`, `ckks` | `shares` |" in text
    assert "| `momentum` | number, at least 0, below 1 | `0.0` |" in text
