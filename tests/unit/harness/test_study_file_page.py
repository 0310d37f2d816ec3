"""docs/study_file.md names every key of a study file, with type and default as the models have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from client_agent.learning.study_file import ArchitectureTable, FinishTable, ModelTable, ParametersTable, StudyTable
from harness.reference.pages import taken
from protocol.messages.control import RankingSpec, RuleSpec, SummarySpec, TaskSpec, TrainingSpec
from protocol.messages.specifications import PrivacySpec

TABLES: Final[Mapping[str, type[BaseModel]]] = {
    "": StudyTable,
    "model": ModelTable,
    "model.architecture": ArchitectureTable,
    "parameters": ParametersTable,
    "rule": RuleSpec,
    "training": TrainingSpec,
    "task": TaskSpec,
    "privacy": PrivacySpec,
    "ranking": RankingSpec,
    "summary": SummarySpec,
    "finish": FinishTable,
}
_WITHIN: Final = frozenset({"version"})


def keys_of(name: str) -> dict[str, FieldInfo]:
    """The keys of a table that are no tables themselves."""
    inner = {key.rpartition(".")[2] for key in TABLES if key.rpartition(".")[0] == name and key} | {"data_schema"}
    fields = TABLES[name].model_fields.items()
    of_message = _WITHIN if name != "model.architecture" else frozenset()
    return {key: field for key, field in fields if key not in inner and key not in of_message}


def default_of(field: FieldInfo) -> str:
    value = field.default
    if field.is_required():
        return "required"
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, StrEnum):
        value = value.value
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


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
