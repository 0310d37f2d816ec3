"""Databases that older versions made: opened with what is in them, or refused with what to do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData, insert, text

from protocol.errors import ConfigurationError
from servers.store.database import open_engine
from servers.store.migrate import upgrade
from servers.store.records import row_of
from servers.store.sql import SqlStore
from servers.store.tables import METADATA
from tests.contract.records import KEY, RECORD, ROUND, contribution, sqlite_url
from tests.kit.present import present

TABLES = Path(__file__).with_name("database_0009.sql")
"""Statements of commit 2e72779a on PostgreSQL; on SQLite two types have other names."""
SINCE = {"0009": "", "0010": "ALTER TABLE contributions ADD COLUMN chunk_tags BYTEA"}


def made_by_older_code(url: str, revision: str) -> Engine:
    """A database with a study, a round and its contribution."""
    engine = open_engine(url)
    written = ";".join((TABLES.read_text(), SINCE[revision], f"UPDATE alembic_version SET version_num='{revision}'"))
    if engine.dialect.name == "sqlite":
        written = written.replace("BYTEA", "BLOB").replace("SERIAL", "INTEGER")
    with engine.begin() as connection:
        for statement in filter(str.strip, written.split(";")):
            connection.execute(text(statement))
        tables = MetaData()
        tables.reflect(connection)

        def add(name: str, row: Mapping[str, Any]) -> None:
            columns = tables.tables[name].columns
            connection.execute(insert(tables.tables[name]).values({key: row[key] for key in row if key in columns}))

        add("studies", row_of(RECORD))
        add("rounds", row_of(ROUND) | {"noise_secret": os.urandom(32)})
        add("contributions", row_of(contribution("site-b")))
    return engine


@pytest.mark.parametrize("revision", SINCE)
def test_a_database_of_older_code_opens_with_what_is_in_it(empty: str, revision: str) -> None:
    engine = made_by_older_code(empty, revision)
    upgrade(empty)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    engine.dispose()
    store = SqlStore(empty, lambda _: None)
    try:
        assert store.studies() == [RECORD]
        assert store.round(KEY) == ROUND
        found = present(store.contribution(KEY, "site-b"))
        assert found.receipt == contribution("site-b").receipt
        assert store.next_boot() == 1
        assert store.change_round(KEY, lambda _: ROUND) == ROUND
    finally:
        store.close()


def test_a_version_without_its_tables_is_refused_on_either_engine(empty: str) -> None:
    engine = open_engine(empty)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('0009')"))
    engine.dispose()
    with pytest.raises(ConfigurationError, match=r"cannot be opened or upgraded: .*; see to its disk"):
        upgrade(empty)


@pytest.mark.parametrize(
    ("revision", "remedy"), [("0008", "brings it to 0009, then this one"), ("0999", "or a newer one")]
)
def test_a_database_of_another_time_is_refused_with_what_to_do(tmp_path: Path, revision: str, remedy: str) -> None:
    url = sqlite_url(tmp_path)
    engine = made_by_older_code(url, "0010")
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num='{revision}'"))
    engine.dispose()
    with pytest.raises(ConfigurationError, match=rf"has schema {revision}, this version opens 0009 to .*: .*{remedy}"):
        upgrade(url)


@pytest.mark.parametrize(
    ("rows", "said"), [("('0010'), ('0011')", "'0010', '0011'"), ("(NULL)", "NULL"), ("('x')", "'x'")]
)
def test_a_version_that_cannot_be_read_is_refused_with_what_to_do(tmp_path: Path, rows: str, said: str) -> None:
    url = sqlite_url(tmp_path)
    engine = made_by_older_code(url, "0010")
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE alembic_version"))
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        connection.execute(text(f"INSERT INTO alembic_version VALUES {rows}"))
    engine.dispose()
    with pytest.raises(ConfigurationError, match=rf"alembic_version holds {said}\): put a backup in its place"):
        upgrade(url)
