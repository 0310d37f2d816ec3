"""Every key of a case file has a row in docs/simulating.md, with its default, and no row is about nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from harness.simulate.case import CaseTable, VariantTable
from harness.simulate.study_files import MatrixTable

TEXT = (Path(__file__).parents[2] / "docs" / "simulating.md").read_text(encoding="utf-8")


def rows(title: str) -> dict[str, str]:
    """Key -> default of a section's table; a row may name several keys."""
    (section,) = re.findall(rf"^## `{re.escape(title)}`\n(.*?)(?=^## )", TEXT, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^\| (`.+?) \| (.*?) ?\| ", section, flags=re.MULTILINE)
    return {key: default for keys, default in found for key in re.findall(r"`(\w+)`", keys)}


@pytest.mark.parametrize(
    ("title", "table"), [("[case]", CaseTable), ("[[variant]]", VariantTable), ("[matrix]", MatrixTable)]
)
def test_every_key_has_a_row_with_its_default(title: str, table: type[BaseModel]) -> None:
    documented = rows(title)
    assert set(documented) == set(table.model_fields)
    for key, field in table.model_fields.items():
        default = field.default
        if default is PydanticUndefined:
            assert not documented[key], f"{key} has no default"
        elif default not in (None, {}) and not isinstance(default, BaseModel):
            assert documented[key] == f"`{json.dumps(default)}`"
