"""A site's own database as source, by the worked example of docs/preparing_data.md, on SQLite and DuckDB."""

from __future__ import annotations

import hashlib
import runpy
import sqlite3
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.data.database import URL_VARIABLE, database_url, query_table
from client_agent.data.findings import Findings
from client_agent.data.rows import read_rows
from client_agent.data.site_table import SiteColumn, SiteTable
from client_agent.learning.data import load_folder
from client_agent.learning.study_file import parse_study_table
from protocol.errors import ConfigurationError
from protocol.messages.control import TableSchema
from tests.kit.command_line import moiety
from tests.kit.present import present
from tests.unit.data.made import ILL, ROOT, SEEN, WHO
from tests.unit.data.made import schema as made_of

EXAMPLES = ROOT / "docs" / "examples"
STUDY = EXAMPLES / "omop.toml"
PASSWORD = "tr0ub4dor"


def schema() -> TableSchema:
    return present(parse_study_table(STUDY.read_text(encoding="utf-8"), str(STUDY)).data_schema)


@pytest.fixture(scope="module")
def omop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("omop") / "omop.sqlite"
    runpy.run_path(str(EXAMPLES / "make_omop.py"))["make"](path, 120, seed=3)
    return path


def test_the_worked_example(omop: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "database.url"
    address.write_text(f"sqlite:///{omop}\n")
    address.chmod(0o600)
    assert moiety("data", "prepare", "--study", STUDY, "--database", address, "--out", tmp_path / "data") == 0
    said = capsys.readouterr().out
    assert f"query {hashlib.sha256(schema().query.encode()).hexdigest()}" in said
    data = load_folder(tmp_path / "data", (len(schema().feature_names),), 2)
    assert (len(data.train), len(data.test)) == (96, 24)
    ages = sqlite3.connect(omop).execute("SELECT (2021 - year_of_birth) / 120.0 FROM person").fetchall()
    prepared = np.sort(np.concatenate([data.train.X[:, 0], data.test.X[:, 0]]))
    assert prepared.tolist() == pytest.approx(sorted(age for (age,) in ages), rel=1e-6)
    monkeypatch.setenv(URL_VARIABLE, f"sqlite:///{omop}")
    assert moiety("data", "prepare", "--dry-run", "--study", STUDY) == 0


def test_duckdb_gives_the_same_rows(omop: Path, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("duckdb_engine")
    source = sqlite3.connect(omop)
    with duckdb.connect(str(tmp_path / "omop.duckdb")) as copy:
        for name, columns in (
            ("person", "person_id INTEGER, gender_concept_id INTEGER, year_of_birth INTEGER"),
            (
                "measurement",
                "id INTEGER, person_id INTEGER, measurement_concept_id INTEGER, measurement_date DATE, "
                "value_as_number DOUBLE, unit_concept_id INTEGER",
            ),
            (
                "condition_occurrence",
                "id INTEGER, person_id INTEGER, condition_concept_id INTEGER, condition_start_date DATE",
            ),
        ):
            copy.execute(f"CREATE TABLE {name} ({columns})")
            rows = source.execute(f"SELECT * FROM {name}").fetchall()
            copy.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    query = schema().query + " ORDER BY person"
    ours, theirs = (rows_of(query, url) for url in (f"sqlite:///{omop}", f"duckdb:///{tmp_path / 'omop.duckdb'}"))
    assert ours == pytest.approx(theirs, nan_ok=True)


def rows_of(query: str, url: str) -> list[float]:
    columns = [column for batch in query_table(query, url).batches for column in batch.columns]
    return [float("nan" if value is None else value) for column in columns for value in column.to_pylist()]


AGES = {"name": "age", "type": "number", "missing": "median"}
POINTS = SiteTable(decimal=",", thousands=".", columns={"seen": SiteColumn(format="%d.%m.%Y")})


def read(url: str, *columns: dict[str, Any]) -> list[list[Any]]:
    """Values by column, in a site that writes 1.234,5 and 31.3.2026, of the table t."""
    of_t, findings = made_of(*columns, ILL, missing_marks=["NA"]), Findings()
    table = query_table(f"SELECT {', '.join(one['name'] for one in columns)}, ill FROM t", url)
    rows = read_rows(of_t, table, POINTS, findings)
    assert [finding.text for finding in findings] == []
    return [values.tolist() for values in rows.columns]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([1.234, 2.234, None], [1.234, 2.234, nan]),
        ([1234, 5, 2**53 + 1], [1234, 5, 2**53]),
        ([1.234, 5, None], [1.234, 5, nan]),
        ([1.234, "NA", 1000.0], [1.234, nan, 1000]),
        ([1.234, "1.234,5", 1e-300], [1.234, 1234.5, 1e-300]),
        ([1.234, 2**63 - 1, -0.5], [1.234, 2**63, -0.5]),
        ([1.234, *[None] * 2**14, "1.234"], [1.234, *[nan] * 2**14, 1234]),
    ],
)
def test_a_databases_numbers_have_no_notation(tmp_path: Path, given: list[Any], meant: list[float]) -> None:
    """Unlike its texts; SQLite may hold both in one column."""
    with sqlite3.connect(tmp_path / "t.sqlite") as made:
        made.execute("CREATE TABLE t (age, ill INTEGER)")
        made.executemany("INSERT INTO t VALUES (?, ?)", [(value, n % 2) for n, value in enumerate(given)])
    assert read(f"sqlite:///{tmp_path / 't.sqlite'}", AGES)[0] == pytest.approx(meant, rel=0, abs=0, nan_ok=True)


def test_a_databases_ids_decimals_and_dates_have_no_notation(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("duckdb_engine")
    with duckdb.connect(str(tmp_path / "t.duckdb")) as made:
        made.execute(
            "CREATE TABLE t AS SELECT 1.234::DECIMAL(8, 3) AS age, DATE '2026-03-31' AS seen, "
            "TIMESTAMP '2026-03-31' AS again, 170141183460469231731687303715884105727::HUGEINT AS who, 1 AS ill"
        )
    again = {"name": "again", "type": "time", "role": "observed_at", "format": "%Y%m%d"}
    url, day = f"duckdb:///{tmp_path / 't.duckdb'}", datetime(2026, 3, 31, tzinfo=UTC).timestamp()
    assert [column[0] for column in read(url, AGES, SEEN, WHO)[:3]] == [1.234, day, str(2**127 - 1)]
    assert [column[0] for column in read(url, AGES, again)[:2]] == [1.234, day]


@pytest.mark.parametrize(
    "query",
    [
        "-- patients of 2020\nSELECT 7 AS a",
        "SELECT 7 AS a WHERE 'a;b' <> 'it''s' -- ; done",
        "/* all; of them */ SELECT 7 AS a; -- done\n",
    ],
)
def test_comments_and_quoted_text_are_no_second_statement(omop: Path, query: str) -> None:
    assert rows_of(query, f"sqlite:///{omop}") == [7.0]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("DELETE FROM person", "not one statement that reads"),
        ("SELECT 1; DROP TABLE person", "not one statement that reads"),
        ("WITH x AS (SELECT 1) DELETE FROM person", "leave out DELETE FROM"),
        ("SELECT file FROM pragma_database_list", "reaches beyond tables"),
        ("SELECT load_extension('x')", "reaches beyond tables"),
        ("SELECT value FROM json_each('[1]')", "reaches beyond tables"),
        ("SELECT * FROM patients", "no such table: patients"),
        ("SELECT CAST(x'00' AS BLOB) AS b", "a column of bytes: cast it"),
    ],
)
def test_what_does_not_read_is_refused(omop: Path, query: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        list(query_table(query, f"sqlite:///{omop}").batches)
    assert sqlite3.connect(omop).execute("SELECT COUNT(*) FROM person").fetchone() == (120,)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"mysql://me:{PASSWORD}@db/omop", "databases are sqlite, postgresql.psycopg and duckdb"),
        (f"postgresql+psycopg2://me:{PASSWORD}@db/omop", "databases are sqlite, postgresql.psycopg and duckdb"),
        (f"postgresql+psycopg://me:{PASSWORD}@127.0.0.1:1/omop", "cannot be reached"),
        (f"{PASSWORD} is no address", "the address of the database cannot be read"),
        (f"postgresql://me:p@ss:{PASSWORD}@db/omop", "in a password '@', ':' and '/' are written %40"),
        (f"postgresql://me:{PASSWORD}@db:port/omop", "the address of the database cannot be read"),
        (f"sqlite:////nowhere/{PASSWORD}/omop.sqlite", "names no file that is here"),
    ],
)
def test_the_address_is_never_said(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        query_table("SELECT 1", url)
    assert PASSWORD not in caught.value.detail


def test_duckdb_reads_its_tables_alone(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("duckdb_engine")
    key, database = tmp_path / "keys.toml", tmp_path / "omop.duckdb"
    key.write_text(PASSWORD)
    with duckdb.connect(str(database)) as made:
        made.execute("CREATE TABLE person AS SELECT 1 AS person_id")
        made.execute(f"CREATE VIEW keys AS SELECT content FROM read_text('{key}')")
    url = f"duckdb:///{database}"
    reading = (f"SELECT content FROM read_text('{key}')", "SELECT * FROM keys", f"SELECT * FROM glob('{tmp_path}/*')")
    for query in reading:
        with pytest.raises(ConfigurationError, match="reaches beyond tables") as caught:
            list(query_table(query, url).batches)
        assert PASSWORD not in caught.value.detail
    with pytest.raises(ConfigurationError, match="leave out what follows"):
        query_table("SELECT 1", f"{url}?enable_external_access=true")
    assert rows_of("SELECT person_id FROM person", url) == [1.0]


def test_an_address_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "database.url"
    file.write_text("sqlite://\n")
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        database_url(file)
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match=URL_VARIABLE):
        database_url(None)
