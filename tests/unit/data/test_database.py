"""A site's own database as source, by the worked example of docs/preparing_data.md, on SQLite and DuckDB."""

from __future__ import annotations

import hashlib
import runpy
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from client_agent.data.database import URL_VARIABLE, database_url, query_table
from client_agent.learning.data import load_folder
from client_agent.learning.study_file import parse_study_table
from moiety import main
from protocol.errors import ConfigurationError
from protocol.wire.messages import TableSchema
from tests.unit.data.made import ROOT

EXAMPLES = ROOT / "docs" / "examples"
STUDY = EXAMPLES / "omop.toml"
PASSWORD = "tr0ub4dor"


def schema() -> TableSchema:
    found = parse_study_table(STUDY.read_text(encoding="utf-8"), str(STUDY)).data_schema
    assert found is not None
    return found


@pytest.fixture(scope="module")
def omop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("omop") / "omop.sqlite"
    runpy.run_path(str(EXAMPLES / "make_omop.py"))["make"](path, 120, seed=3)
    return path


def test_the_worked_example(omop: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "database.url"
    address.write_text(f"sqlite:///{omop}\n")
    address.chmod(0o600)
    with pytest.raises(SystemExit) as ended:
        main(["data", "prepare", "--study", str(STUDY), "--database", str(address), "--out", str(tmp_path / "data")])
    said = capsys.readouterr().out
    assert not ended.value.code
    assert f"query {hashlib.sha256(schema().query.encode()).hexdigest()}" in said
    data = load_folder(tmp_path / "data", (len(schema().feature_names),), 2)
    assert (len(data.train), len(data.test)) == (96, 24)
    ages = sqlite3.connect(omop).execute("SELECT (2021 - year_of_birth) / 120.0 FROM person").fetchall()
    prepared = np.sort(np.concatenate([data.train.X[:, 0], data.test.X[:, 0]]))
    assert prepared.tolist() == pytest.approx(sorted(age for (age,) in ages), rel=1e-6)
    monkeypatch.setenv(URL_VARIABLE, f"sqlite:///{omop}")
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", "--study", str(STUDY)])
    assert not ended.value.code


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
