"""``moiety data`` as docs/preparing_data.md has it: a file of the Cleveland form becomes a folder for an agent."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest

from client_agent.data.prepare import write
from client_agent.data.transformation import load_transformation, transform_file
from client_agent.learning.data import load_folder, require_made_by_schema
from protocol.errors import ConfigurationError
from protocol.messages.control import TableSchema
from tests.kit.command_line import moiety
from tests.unit.data.made import (
    AGE,
    CHOL,
    CLEVELAND,
    COLUMNS,
    GOOD,
    ILL,
    PAIN,
    ROOT,
    cleveland_schema,
    cleveland_text,
    prepare,
    schema,
    written,
)
from tests.unit.parties import parties, study

# --- commands ---------------------------------------------------------------------------------------------------------

REAL = Path(os.environ.get("MOIETY_DATA", "")) / "heart_disease" / "processed.cleveland.data"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(cleveland_text(), id="made up"),
        pytest.param(
            REAL.read_text() if REAL.is_file() else "",
            id="real",
            marks=pytest.mark.skipif(not REAL.is_file(), reason="the public file is not there (MOIETY_DATA)"),
        ),
    ],
)
def test_the_walk_through(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = written(tmp_path, text, "processed.cleveland.data"), tmp_path / "data"
    assert moiety("data", "prepare", "--dry-run", file, "--study", CLEVELAND) == 0
    assert moiety("data", "prepare", file, "--study", CLEVELAND, "--out", out) == 0
    said = capsys.readouterr().out
    schema = cleveland_schema()
    assert f"{len(schema.feature_names)} features\nschema {schema.digest()}" in said
    made = load_folder(out, (len(schema.feature_names),), 2)
    rows = len(text.splitlines())
    assert (len(made.train), len(made.test)) == (rows - round(rows * 0.2), round(rows * 0.2))
    assert made.names.classes == ("healthy", "ill")
    assert np.abs(made.train.X.mean(axis=0)[0]) < 1e-6
    new = written(tmp_path, "\n".join(line.rpartition(",")[0] for line in text.splitlines()), "new.csv")
    again = transform_file(new, load_transformation(out / "transformation.json"))
    assert {row.tobytes() for row in made.test.X} < {row.tobytes() for row in again}


def test_a_draft_is_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, cleveland_text())
    assert moiety("data", "schema", file) == 0
    drafted = tomllib.loads(capsys.readouterr().out)["schema"]
    schema = TableSchema.model_validate_json(json.dumps(drafted))
    assert (schema.header, schema.missing_marks) == (False, ("?",))
    assert [column.type.value for column in schema.columns[:5]] == ["integer", "boolean", "category"] + ["integer"] * 2
    assert schema.columns[11].missing.value == "category"
    study = CLEVELAND.read_text().partition("[schema]")[0] + draft_of(file, capsys)
    assert moiety("data", "prepare", "--dry-run", file, "--study", written(tmp_path, study, "study.toml")) == 0


def draft_of(file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert moiety("data", "schema", file) == 0
    return capsys.readouterr().out


def test_a_draft_of_a_table_with_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"p{n},2026-01-{n + 1:02},{n + 20.5 if n else -9},{'fm'[n % 2]},{n % 2},text {n},{-n * 7}" for n in range(28)
    ]
    file = written(tmp_path, "\n".join(["patient_id,seen,weight,sex,ill,remark,change", *rows]))
    assert moiety("data", "schema", file, "--target", "ill") == 0
    drafted = capsys.readouterr().out
    columns = {one["name"]: one for one in tomllib.loads(drafted)["schema"]["columns"]}
    assert columns["patient_id"]["role"] == "patient"
    assert (columns["seen"]["type"], columns["seen"]["role"]) == ("time", "observed_at")
    assert columns["weight"] == {
        "name": "weight",
        "type": "number",
        "unit": "",
        "range": [20, 50],
        "missing": "indicator",
    }
    assert columns["sex"] == {"name": "sex", "type": "boolean", "categories": ["f", "m"]}
    assert columns["ill"]["role"] == "target"
    assert columns["change"]["range"] == [-200, 0]
    assert "remark" not in columns
    assert '# name = "remark"' in drafted
    assert moiety("data", "schema", file, "--target", "died") == 2
    assert "no column is called 'died'" in capsys.readouterr().err


def test_a_table_that_does_not_fit_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, cleveland_text().replace("3.0,", "9.0,"))
    assert moiety("data", "prepare", "--dry-run", file, "--study", CLEVELAND, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is False
    assert {finding["problem"] for finding in found["findings"]} == {"undeclared category", "out of range"}
    assert moiety("data", "prepare", file, "--study", CLEVELAND, "--out", tmp_path / "data") == 2
    assert "does not fit the study's schema" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = ROOT / "docs" / "examples" / "first.toml"
    assert moiety("data", "prepare", "--dry-run", written(tmp_path, "x"), "--study", plain) == 2
    assert "no [schema]" in capsys.readouterr().err
    assert moiety("data", "prepare", written(tmp_path, cleveland_text(), "table.csv"), "--study", CLEVELAND) == 2
    assert "name the folder to make with --out, or check only: --dry-run" in capsys.readouterr().err
    assert moiety("data", "prepare", "--dry-run", "--study", CLEVELAND) == 2
    assert "the study's schema has no query" in capsys.readouterr().err


STUDY = """name = "s"
rounds = 3
[model]
kind = "linear"
[parameters]
clip_norm = 1.0
[rule]
name = "weight_erosion"
[schema]
columns = [
  {name = "age", type = "number", range = [0, 120]},
  {name = "platelets", type = "number"},
  {name = "ill", type = "boolean", role = "target", categories = ["0", "1"]},
]
"""


def test_parted_thousands_are_read_once_the_site_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f'{30 + n},"{n % 3 + 1},{n}50",{n % 2}' if n < 10 else f"{30 + n},850,{n % 2}" for n in range(12)]
    file = written(tmp_path, "\n".join(["age,platelets,ill", *rows]).replace(",050", ",200"))
    study, site = written(tmp_path, STUDY, "study.toml"), written(tmp_path, "decimal = ','", "site.toml")
    for more in ((), ("--site", site)):
        assert moiety("data", "prepare", "--dry-run", file, "--study", study, *more) == 1
        assert "decimal = ','" not in capsys.readouterr().out
        assert moiety("data", "prepare", file, "--study", study, "--out", tmp_path / "data", *more) == 2
    site.write_text("thousands = ','")
    assert moiety("data", "prepare", "--dry-run", file, "--study", study, "--site", site) == 0
    assert moiety("data", "prepare", file, "--study", study, "--out", tmp_path / "data", "--site", site) == 0
    found = load_transformation(tmp_path / "data" / "transformation.json")
    assert found.fitted[1].centre > 850
    assert found.site is not None


# --- kept -------------------------------------------------------------------------------------------------------------

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
