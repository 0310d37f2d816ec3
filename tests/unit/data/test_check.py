"""Faults of a table are named by column and row, never with a value, and before anything is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from client_agent.data.findings import Problem
from client_agent.data.site_table import SiteColumn, SiteTable
from protocol.errors import ConfigurationError
from tests.unit.data.made import AGE, CHOL, GOOD, ILL, PAIN, SEEN, WHO, report, schema, written

TARGET = {"name": "y", "type": "integer", "role": "target", "range": [0, 9]}
SURVIVAL = (
    AGE,
    {"name": "days", "type": "number", "role": "survival_time"},
    {"name": "died", "type": "boolean", "role": "event"},
)


@pytest.mark.parametrize(
    ("columns", "text", "problem", "said"),
    [
        ((), GOOD.replace("chol", "cholesterol"), Problem.NO_COLUMN, "no column 'chol'"),
        ((), GOOD.replace("chol", "Chol"), Problem.ALMOST_COLUMN, "name = 'Chol' under [columns.chol]"),
        ((), GOOD.replace("chol", "chol [mmol/l]"), Problem.OTHER_UNIT, "in 'mmol/l', the schema's is 'mg/dl'"),
        ((), GOOD.replace("chol", "age"), Problem.NAMED_TWICE, "2 columns called 'age'"),
        ((), GOOD.replace(",3,0", ",4,0"), Problem.UNDECLARED, "in 1 rows (4): the schema has 1, 2, 3"),
        ((), GOOD.replace("200", "2oo"), Problem.NOT_A_NUMBER, "column 'chol': no number in 1 rows (1)"),
        ((), GOOD.replace("200", "1e999"), Problem.NOT_FINITE, "column 'chol': NaN or infinity in 1 rows (1)"),
        ((), GOOD.replace("200", "nan"), Problem.NOT_FINITE, "(1)"),
        ((), GOOD.replace("200", '"2,5"'), Problem.DECIMAL_COMMA, "say decimal = ','"),
        ((), GOOD.replace("70,", "700,"), Problem.OUT_OF_RANGE, "in 1 rows (3): the schema allows 0 to 120 years"),
        ((), GOOD.replace("70,", ","), Problem.MISSING, "column 'age': missing value in 1 rows (3)"),
        ((), GOOD.replace(",?,", ","), Problem.FIELD_COUNT, "in 1 rows (2): expected 4 fields"),
        ((), "age,chol,pain,ill\n", Problem.NO_ROWS, "no row is left"),
        ((), "age,chol,pain,ill\n5,?,1,0\n6,?,2,1\n", Problem.ALL_MISSING, "column 'chol'"),
        ((), "age,chol,pain,ill\n5,1,1,0\n6,1,2,0\n", Problem.ONE_CLASS, "--one-outcome"),
        ((AGE, TARGET), "age,y\n5,10\n6,1\n", Problem.OUT_OF_RANGE, "column 'y': out of range in 1 rows (1)"),
        ((AGE, TARGET), "age,y\n5,1.5\n6,1\n", Problem.NOT_WHOLE, "column 'y'"),
        (SURVIVAL, "age,days,died\n5,0,0\n6,3,1\n", Problem.OUT_OF_RANGE, "a time counts from the start"),
        (SURVIVAL, "age,days,died\n5,2,0\n6,3,0\n", Problem.NO_EVENTS, "column 'died'"),
        (
            (AGE, ILL, {"name": "seen", "type": "time", "role": "observed_at", "format": "%d.%m.%Y"}),
            "age,ill,seen\n5,0,1.2.2020\n6,1,2020-02-01\n",
            Problem.NOT_A_TIME,
            "in 1 rows (2): written as %d.%m.%Y",
        ),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, columns: tuple[dict[str, Any], ...], text: str, problem: Problem, said: str
) -> None:
    found = report(schema(*columns), written(tmp_path, text))
    assert not found.fits
    (finding,) = [one for one in found.findings if one.problem is problem]
    assert said in finding.text


@pytest.mark.parametrize(
    ("columns", "text", "problem"),
    [
        ((), "age,chol,pain,ill\n50,x,1,0\n60,y,2,1\n", Problem.NOT_A_NUMBER),
        ((), GOOD.replace("70,", "x,"), Problem.NOT_A_NUMBER),
        ((), "age,chol,pain,ill\n500,?,1,0\n600,3,2,1\n", Problem.OUT_OF_RANGE),
        ((), "age,chol,pain,ill\n50,1,1,no\n60,3,2,yes\n", Problem.UNDECLARED),
        ((), "age,chol,pain,ill\n50,1,1,0\n60,3,2,yes\n", Problem.UNDECLARED),
        (SURVIVAL, "age,days,died\n5,2,0\n6,3,yes\n", Problem.UNDECLARED),
        ((AGE, ILL, SEEN), "age,ill,seen\n5,0,yesterday\n6,1,today\n", Problem.NOT_A_TIME),
    ],
)
def test_values_that_cannot_be_read_are_neither_missing_nor_alike(
    tmp_path: Path, columns: tuple[dict[str, Any], ...], text: str, problem: Problem
) -> None:
    """A column with them has no second finding, that it has no values or the same ones."""
    assert [one.problem for one in report(schema(*columns), written(tmp_path, text)).findings] == [problem]


def test_missing_values_are_said_to_be_all(tmp_path: Path) -> None:
    found = report(schema(), written(tmp_path, "age,chol,pain,ill\n?,1,1,0\n?,3,2,1\n")).findings
    assert [one.problem for one in found] == [Problem.MISSING, Problem.ALL_MISSING]


def test_no_value_is_ever_said(tmp_path: Path) -> None:
    text = "age,chol,pain,ill\nSECRET1,SECRET2,SECRET3,SECRET4\n" + "5,6,7\n" + GOOD.partition("\n")[2]
    found = report(schema(), written(tmp_path, text))
    assert len(found.findings) == 5
    assert "SECRET" not in str(found)


def test_counts_run_over_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_agent.data.source._BATCH_FIELDS", 8)
    found = report(schema(), written(tmp_path, GOOD + "500,1,1,1\n" * 20))
    (finding,) = found.findings
    assert finding.text.startswith("column 'age': out of range in 20 rows (7, 8, 9, 10, 11, ...)")


def test_one_class_can_be_right(tmp_path: Path) -> None:
    path = written(tmp_path, "age,chol,pain,ill\n5,1,1,0\n6,1,2,0\n")
    assert report(schema(), path, outcomes_differ=False).fits


def test_dropped_rows_and_others_are_remarks(tmp_path: Path) -> None:
    made = schema({**AGE, "missing": "drop_row"}, CHOL, {**PAIN, "other": "3"}, ILL)
    found = report(made, written(tmp_path, GOOD.replace("70,", "?,").replace(",3,0", ",8,0")))
    assert found.fits
    assert sorted(finding.text for finding in found.findings) == [
        "column 'age': rows left out in 1 rows (3): the value is missing",
        "column 'pain': counted as other in 1 rows (4)",
    ]
    assert found.rows == 5


def test_a_patient_on_both_sides_of_a_split_that_the_site_made(tmp_path: Path) -> None:
    made = schema(AGE, ILL, WHO)
    training = written(tmp_path, "age,ill,who\n50,0,a\n51,1,a\n52,1,b\n")
    found = report(made, training, test=written(tmp_path, "age,ill,who\n53,0,b\n54,1,c\n", "test.csv"))
    assert [finding.problem for finding in found.findings] == [Problem.BOTH_SIDES]
    assert "1 patients have rows in both files" in found.findings[0].text
    wrong = report(made, training, test=written(tmp_path, "age,ill,who\nx,0,d\n", "wrong.csv"))
    assert [finding.text for finding in wrong.findings] == [
        f"{tmp_path / 'wrong.csv'}: column 'age': no number in 1 rows (1): if it stands for a missing value, "
        "say missing_marks in the site's file (--site) or the schema"
    ]
    assert report(made, training, test=written(tmp_path, "age,ill,who\n53,0,d\n54,1,c\n", "other.csv")).fits


def test_the_sites_own_names_units_and_words(tmp_path: Path) -> None:
    text = "Alter;Cholesterin;pain;ill\n50,5;5,2;stark;0\n60;?;2;1\n70;6;1;1\n"
    site = SiteTable(
        separator=";",
        decimal=",",
        columns={
            "age": SiteColumn(name="Alter"),
            "chol": SiteColumn(name="Cholesterin", unit="mmol/l", factor=38.67),
            "pain": SiteColumn(values={"stark": "3"}),
        },
    )
    assert report(schema(), written(tmp_path, text), site).fits
    pointed = report(schema(), written(tmp_path, text.replace("50,5", "1.050")), site)
    assert [finding.problem for finding in pointed.findings] == [Problem.NOT_A_NUMBER]


def test_parquet_is_read_as_text_is(tmp_path: Path) -> None:
    columns = {"age": [50.0, 60.0], "chol": [200, None], "pain": ["1", None], "ill": [0.0, 1.0]}
    path = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path)
    assert report(schema(), path).fits
    with pytest.raises(ConfigurationError, match="no readable Parquet file"):
        report(schema(), written(tmp_path, GOOD, "other.parquet"))


def test_a_file_without_names_has_the_schemas_columns(tmp_path: Path) -> None:
    made = schema(header=False)
    assert report(made, written(tmp_path, GOOD.partition("\n")[2])).rows == 6
    (finding,) = report(made, written(tmp_path, "1,2,3\n")).findings
    assert "a row has its 4 columns in its order; found 3" in finding.text


def test_a_line_that_holds_no_name_of_the_schema_is_named(tmp_path: Path) -> None:
    """A title of two fields, or another separator, is likelier than a table without any of the columns."""
    text = "Export,2026\n\n" + GOOD
    last = report(schema(), written(tmp_path, text)).findings[-1]
    assert last.text == (
        "missing column: the file has none of the schema's. Line 1 was taken for their names and has 2 fields: the "
        "separator or skip_lines is wrong in the site's file (--site)"
    )
    assert "has 1 field:" in report(schema(), written(tmp_path, "sex|age\n1;2\n")).findings[-1].text
    some = report(schema(), written(tmp_path, GOOD.replace("chol", "other"))).findings
    assert [finding.column for finding in some] == ["chol"]


def test_a_wrong_date_is_explained_by_what_a_site_can_edit(tmp_path: Path) -> None:
    path = written(tmp_path, "age,ill,seen\n50,0,1.2.2026\n51,1,2026-02-01\n")
    (found,) = report(schema(AGE, ILL, SEEN), path).findings
    assert found.text.endswith("or say format under [columns.seen] in the site's file (--site)")
