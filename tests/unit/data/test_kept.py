"""An agent takes part in a study with a schema only on a folder that was made by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.data.kept import require_made_by_schema
from client_agent.data.prepare import write
from protocol.errors import ConfigurationError
from protocol.messages.control import TableSchema
from tests.unit.data.made import AGE, CHOL, COLUMNS, GOOD, ILL, PAIN, prepare, schema, written
from tests.unit.parties import parties, study

MADE_BY = schema()


def of(table: TableSchema | None):
    return study(parties().roster.message.digest()).model_copy(update={"data_schema": table})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "data", prepare(MADE_BY, written(tmp_path, GOOD), outcomes_differ=False))
    return tmp_path / "data"


def test_the_same_schema_and_none(folder: Path, tmp_path: Path) -> None:
    require_made_by_schema(of(MADE_BY), folder)
    require_made_by_schema(of(None), tmp_path)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (schema({**AGE, "range": [0, 100]}, CHOL, PAIN, ILL), r'(?s)-column {"missing".*100.*\+column {.*120'),
        (schema(*COLUMNS, scaling="none"), r'(?s)-scaling = "none"\n\+scaling = "standard"'),
        (schema(*COLUMNS, split={"seed": 7}), r"(?s)-split = .*7"),
        (schema(*COLUMNS, query="SELECT 1"), r'-query = "SELECT 1"'),
    ],
)
def test_another_schema_is_refused_with_the_difference(folder: Path, other: TableSchema, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        require_made_by_schema(of(other), folder)
    assert "prepare the data again" in caught.value.detail


def test_a_folder_that_nothing_is_known_of_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing says how these data were made"):
        require_made_by_schema(of(MADE_BY), tmp_path)
    (folder / "transformation.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="prepare the data again"):
        require_made_by_schema(of(MADE_BY), folder)
