"""docs/study_file.md names every key of a study file, with type and default as the models have them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.reference.study_file import TABLES, default_of, keys_of, taken

_PAGE = Path("docs/study_file.md").read_text(encoding="utf-8")
_HEAD = "| key | what it takes | default | meaning |\n|---|---|---|---|\n"


def _rows(name: str) -> list[list[str]]:
    heading = f"\n## `[{name}]`\n" if name else "\n## The study\n"
    table = _PAGE.split(heading, 1)[1].split("\n## ", 1)[0].split(_HEAD, 1)[1]
    return [line.strip("| ").split(" | ", 3) for line in table.strip().splitlines()]


@pytest.mark.parametrize("name", list(TABLES))
def test_every_key_is_on_the_page_as_the_models_have_it(name: str) -> None:
    rows = _rows(name)
    expected = [[f"`{key}`", taken(field), default_of(field)] for key, field in keys_of(name).items()]
    assert [row[:3] for row in rows] == expected
    assert all(len(row) == 4 and row[3].endswith(".") for row in rows)


def test_the_page_has_no_table_of_its_own() -> None:
    assert re.findall(r"^## (?:`\[(.+)\]`|The study)$", _PAGE, re.MULTILINE) == list(TABLES)


def test_limits_and_choices_are_named() -> None:
    assert "| `rounds` | whole number, at least 0 | required |" in _PAGE
    assert "| `protection` | `shares`, `ckks` | `shares` |" in _PAGE
    assert "| `momentum` | number, at least 0, below 1 | `0.0` |" in _PAGE
