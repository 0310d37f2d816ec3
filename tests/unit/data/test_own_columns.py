"""A column answers one question for ever, whatever the requester's schema calls it: the site's own table names it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from client_agent.data.database import query_table
from client_agent.data.prepare import Prepared, write
from client_agent.data.rows import ROWS_FILE, kept_own_columns, own_columns
from client_agent.data.site_table import PLAIN, SiteColumn, SiteTable
from client_agent.data.transformation import transform_file
from client_agent.study.results import asked_of_classes
from protocol.errors import ConfigurationError
from protocol.summary.protection import OwnColumn, Question
from tests.unit.data.made import AGE, CHOL, GOOD, ILL, PAIN, prepare, report, schema, written

KEY = bytes(32)
FIRST_LINE = "first line"
WITH_UNIT = GOOD.replace("age,", "age [years],", 1)


def kept(folder: Path, made: Prepared) -> dict[str, OwnColumn]:
    write(folder, made)
    return kept_own_columns(folder, made.transformation.table)


def counted(folder: Path, made: Prepared, counts: tuple[int, ...]) -> Question:
    """The counts that a study with this schema asks of the prepared folder."""
    write(folder, made)
    study: Any = SimpleNamespace(data_schema=made.transformation.table)
    return asked_of_classes(study, folder, counts, KEY)


def parquet(folder: Path) -> Path:
    path = folder / "table.parquet"
    rows = [{"age": n, "chol": 200.0 + n, "pain": str(n % 3 + 1), "ill": str(n % 2)} for n in range(20, 60)]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_a_column_found_by_its_name_before_the_unit_is_the_one_in_the_first_line(tmp_path: Path) -> None:
    """Both names read the same column, and so does the site's own."""
    path = written(tmp_path, WITH_UNIT)
    by_file = SiteTable(columns={"alter": SiteColumn(name="age")})
    for name, site in (("age", PLAIN), ("age [years]", PLAIN), ("alter", by_file)):
        made = prepare(schema({**AGE, "name": name}, ILL), path, site, outcomes_differ=False)
        assert kept(tmp_path / "out", made)[name] == OwnColumn("age [years]", FIRST_LINE)


def test_a_column_is_one_in_every_form_of_unicode(tmp_path: Path) -> None:
    """Names that an older release kept as they were written, too."""
    first, second = (
        Question(column=name, named="x", asked=("a",), values="1", named_in=FIRST_LINE)
        for name in ("gro\u0308\u00dfe", "gr\u00f6\u00dfe")
    )
    assert first.about_the_same(second)
    assert first.about_the_same(second.model_copy(update={"named_in": ""}))
    path = written(tmp_path, GOOD.replace("age", "a\u0308ge\u200b"))
    made = prepare(schema({**AGE, "name": "\u00e4ge"}, ILL), path, outcomes_differ=False)
    assert kept(tmp_path / "out", made)["\u00e4ge"] == OwnColumn("\u00e4ge", FIRST_LINE)


def test_class_counts_under_two_names_of_one_column_are_not_both_answered(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace("ill", "ill ()"))
    first, second = (
        counted(
            tmp_path / "out",
            prepare(schema(AGE, {**ILL, "name": name}), path, outcomes_differ=False),
            (100, 200 - at),
        )
        for at, name in enumerate(("ill", "ill ()"))
    )
    assert first.about_the_same(second)
    assert first.answer != second.answer


def test_a_file_without_a_first_line_has_its_columns_by_their_places_in_it(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.split("\n", 1)[1])
    made = prepare(schema(AGE, CHOL, PAIN, ILL, header=False), path, outcomes_differ=False)
    assert kept(tmp_path / "out", made)["pain"] == OwnColumn("column 3", "places")


def test_a_file_with_names_is_not_read_as_one_without(tmp_path: Path) -> None:
    """Otherwise the order of the schema would name its columns; models that were made so predict as before."""
    path, without = parquet(tmp_path), schema(header=False)
    with pytest.raises(
        ConfigurationError, match=r"table.parquet: the schema says header = false.*must leave header out"
    ):
        prepare(without, path)
    with pytest.raises(ConfigurationError, match="must leave header out"):
        report(without, written(tmp_path, GOOD.split("\n", 1)[1]), test=path)
    made = prepare(schema(ILL, PAIN, AGE, {"name": "chol", "type": "number"}), path)
    assert kept(tmp_path / "out", made)["age"] == OwnColumn("age", FIRST_LINE)
    asked = made.transformation.model_copy(
        update={"table": made.transformation.table.model_copy(update={"header": False})}
    )
    np.testing.assert_array_equal(transform_file(path, asked), transform_file(path, made.transformation))


def test_a_querys_names_are_the_studys(tmp_path: Path) -> None:
    """Another query can give the same column another name, so its names are compared with no others."""
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE patients AS SELECT 50 AS age, 1 AS ill")
    by_query = [
        own_columns(schema(AGE, ILL), query_table(f"SELECT {text}, ill FROM patients", f"sqlite:///{path}"), PLAIN)
        for text in ("age", "age AS age", "age")
    ]
    assert by_query[0] == by_query[2]
    assert [one.name for one in by_query[1]] == ["age", "ill"]
    assert by_query[0][0].named_in.startswith("query ")
    assert by_query[0][0].named_in != by_query[1][0].named_in


@pytest.mark.parametrize("more", [{}, {"header": False}, {"query": "SELECT 1"}])
def test_a_folder_of_an_older_release_knows_the_studys_name_at_most(tmp_path: Path, more: dict[str, Any]) -> None:
    made = prepare(schema(AGE, ILL), written(tmp_path, WITH_UNIT), outcomes_differ=False)
    write(tmp_path / "out", made)
    np.savez(tmp_path / "out" / ROWS_FILE, own_names=["age", "ill"], column0=[1.0], column1=[0])
    if not more:
        found = kept_own_columns(tmp_path / "out", schema(AGE, ILL))
        assert found == {"age": OwnColumn("age", ""), "ill": OwnColumn("ill", "")}
        return
    with pytest.raises(ConfigurationError, match="make the folder with 'moiety data prepare'"):
        kept_own_columns(tmp_path / "out", schema(AGE, ILL, **more))
