"""A database put back to the schema before, as a server of the version before would have left it."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import make_url

from servers.store.database import open_engine
from servers.store.migrate import _SCRIPTS

_OF_ALEMBIC = "alembic_version"


def one_back(url: str) -> None:
    """Every row goes into the tables that there were before the newest migration; what only newer ones hold is gone.

    Requires: an SQLite database that nobody has open
    """
    now = Path(make_url(url).database or "")
    before = now.with_name("before.db")
    before.write_bytes(_empty())
    with closing(sqlite3.connect(before)) as connection:
        connection.execute("ATTACH ? AS now", (str(now),))
        for table in _tables(connection, "main") & _tables(connection, "now") - {_OF_ALEMBIC}:
            columns = ", ".join(f'"{one}"' for one in _columns(connection, table))
            connection.execute(f'DELETE FROM main."{table}"')  # noqa: S608  # names from the schema itself
            connection.execute(f'INSERT INTO main."{table}" ({columns}) SELECT {columns} FROM now."{table}"')  # noqa: S608
        connection.commit()
    for beside in ("-wal", "-shm"):
        now.with_name(now.name + beside).unlink(missing_ok=True)
    before.replace(now)


def _tables(connection: sqlite3.Connection, schema: str) -> set[str]:
    found = connection.execute(f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table'")  # noqa: S608
    return {name for (name,) in found if not name.startswith("sqlite_")}


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    """Those that the table has in both schemas."""
    both = [
        {row[1] for row in connection.execute(f'PRAGMA {schema}.table_info("{table}")')} for schema in ("main", "now")
    ]
    return sorted(both[0] & both[1])


@cache
def _empty() -> bytes:
    """A database of the schema before the newest, with nothing in it."""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    scripts = ScriptDirectory.from_config(config)
    newest = scripts.get_revision(scripts.get_current_head() or "")
    with tempfile.TemporaryDirectory(prefix="moiety-schema-") as folder:
        path = Path(folder) / "server.db"
        engine = open_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, str(newest.down_revision))
        engine.dispose()
        return path.read_bytes()
