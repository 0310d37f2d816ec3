"""A database without room is told from one that does not answer by the driver's code, never by its words."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError, OperationalError

from protocol.errors import StorageFull, Unavailable
from servers.store.database import explained, open_engine


def refused(folder: Path, *statements: str) -> DatabaseError:
    engine = open_engine(f"sqlite:///{folder / 'server.db'}")
    *before, last = map(text, statements)
    with engine.begin() as connection:
        for statement in before:
            connection.execute(statement)
        with pytest.raises(OperationalError) as error:
            connection.execute(last)
    engine.dispose()
    return error.value


def test_sqlite_without_room_is_full(tmp_path: Path) -> None:
    filled = "INSERT INTO kept VALUES (zeroblob(100000))"
    error = refused(tmp_path, "CREATE TABLE kept (x)", "PRAGMA max_page_count = 10", filled)
    assert isinstance(explained(error), StorageFull)


def test_postgresql_without_room_is_full() -> None:
    full = pytest.importorskip("psycopg").errors.DiskFull("could not extend file")
    assert isinstance(explained(OperationalError("INSERT", {}, full)), StorageFull)


def test_a_table_whose_name_says_full_is_not(tmp_path: Path) -> None:
    error = explained(refused(tmp_path, "SELECT * FROM full_house"))
    assert type(error) is Unavailable
