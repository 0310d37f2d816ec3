"""A site's own database as a source: the study's query, read-only, over a connection that only the site knows.

The address, with its password, comes from a file or the environment and stands in no error, log or ledger. What a
database says about an error is shown only where it speaks of the statement, since it may quote rows otherwise.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import sqlalchemy
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from client_agent.data.source import Table
from host.files import read_secret
from protocol.errors import ConfigurationError
from protocol.messages.table import reading_statement

URL_VARIABLE: Final = "MOIETY_DATABASE_URL"
_BATCH_ROWS: Final = 2**14
_OF_THE_STATEMENT: Final = re.compile(r"^(no such (table|column|function)|near |ambiguous column|syntax error)")
_BEYOND_TABLES: Final = re.compile(
    "^(not authorized|access to .* prohibited|vtable constructor failed|Permission Error)"
)
_TYPES: Final = (
    ({int}, pa.int64()),
    ({int, float}, pa.float64()),
    ({Decimal}, None),
    ({date}, pa.date32()),
    ({datetime}, pa.timestamp("us")),
)
"""Python's types of a column's values, and Arrow's; decimals have that of their digits."""
_DRIVERS: Final = {"sqlite": "pysqlite", "postgresql": "psycopg", "duckdb": "duckdb_engine"}
_DUCKDB: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}
_SQLITE_READS: Final = frozenset(
    (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
)
_SQLITE_REACHES: Final = frozenset(("load_extension", "fts3_tokenizer", "readfile", "writefile", "lsmode", "edit"))
"""Functions that reach beyond tables, where SQLite was built or extended with them."""
_POSTGRESQL_REACHES: Final = """
WITH may_be AS (SELECT * FROM pg_roles WHERE pg_has_role(session_user, oid, 'MEMBER')),
     reaches AS (
       SELECT DISTINCT proname FROM pg_proc, may_be
        WHERE (proname IN ('pg_read_file', 'pg_read_binary_file', 'pg_ls_dir', 'pg_stat_file', 'lo_import', 'lo_export')
               OR proname ~ '^(pg_file_|dblink|http)' OR pronamespace = to_regnamespace('net'))
          AND has_function_privilege(may_be.oid, pg_proc.oid, 'EXECUTE')
          AND has_schema_privilege(may_be.oid, pronamespace, 'USAGE'))
SELECT format('CREATE ROLE moiety_reader LOGIN PASSWORD ''CHOOSE ONE'';
GRANT CONNECT ON DATABASE %1$I TO moiety_reader;
GRANT USAGE ON SCHEMA %2$I TO moiety_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA %2$I TO moiety_reader;', current_database(), coalesce(current_schema(), 'public')),
       CASE WHEN EXISTS (SELECT FROM may_be WHERE rolsuper) THEN 'is a superuser'
            WHEN EXISTS (SELECT FROM may_be WHERE rolreplication) THEN 'may replicate'
            ELSE coalesce(
              (SELECT 'is a member of ' || string_agg(rolname, ', ' ORDER BY rolname) FROM may_be WHERE rolname IN
                ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program', 'pg_signal_backend',
                 'pg_monitor', 'pg_read_all_settings', 'pg_read_all_stats', 'pg_stat_scan_tables')),
              (SELECT 'may call ' || string_agg(proname, ', ' ORDER BY proname) FROM reaches),
              (SELECT 'may read passwords in pg_authid'
                 FROM may_be WHERE has_table_privilege(oid, 'pg_authid', 'SELECT') LIMIT 1))
       END
"""
"""A query for what the connection's role may do beyond reading tables, also as one that it may become (a query can set
a role), and for what to type to have a role that may not.
"""


def database_url(file: Path | None) -> str:
    """The address of the site's database: the file's first line, or the environment's. Raises: ConfigurationError"""
    if file is None:
        url = os.environ.get(URL_VARIABLE, "")
        if not url:
            raise ConfigurationError(
                "where is the database? Put its address, such as sqlite:////srv/omop.db or postgresql+psycopg://..., "
                f"into a file that only you can read (--database FILE) or into {URL_VARIABLE}"
            )
        return url
    text = read_secret(file).strip()
    if not text or "\n" in text:
        raise ConfigurationError(f"{file}: expected one line, the address of the database")
    return text


def query_table(query: str, url: str) -> Table:
    """The rows that a study's query gives, streamed, in a transaction that can only read and is rolled back.

    Raises: ConfigurationError without the address and without any value
    """
    try:
        statement = reading_statement(query)
    except ValueError as error:
        raise ConfigurationError(f"schema.{error}") from None
    engine = _engine(url)
    names, rows = _opened(engine, statement)
    return Table("the database", names, len(names), _batches(names, rows), query)


def _engine(url: str) -> sqlalchemy.Engine:
    try:
        parsed = sqlalchemy.make_url(url)
        dialect, _, driver = parsed.drivername.partition("+")
        if dialect not in _DRIVERS or driver not in ("", _DRIVERS[dialect]):
            raise ConfigurationError(
                "databases are sqlite, postgresql+psycopg and duckdb; the address begins with another name"
            )
        if dialect == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        elif not Path(parsed.database or "").is_file():
            raise ConfigurationError("the address of the database names no file that is here")
        if dialect != "postgresql" and parsed.query:
            raise ConfigurationError("the address of a database in a file has no options: leave out what follows '?'")
        only_tables = {"read_only": True, "config": _DUCKDB} if dialect == "duckdb" else {}
        return sqlalchemy.create_engine(parsed, connect_args=only_tables, hide_parameters=True, poolclass=NullPool)
    except exc.NoSuchModuleError:
        raise ConfigurationError("no driver for DuckDB: pip install 'moiety[sql]'") from None
    except ModuleNotFoundError:
        raise ConfigurationError("no driver for PostgreSQL: pip install 'moiety[postgres]'") from None
    except (exc.ArgumentError, ValueError):
        raise ConfigurationError(
            "the address of the database cannot be read: it is dialect+driver://user:password@host:port/name, and in a "
            "password '@', ':' and '/' are written %40, %3A and %2F"
        ) from None


def _opened(engine: sqlalchemy.Engine, statement: str) -> tuple[tuple[str, ...], sqlalchemy.CursorResult[Any]]:
    dialect = engine.dialect.name
    try:
        connection = engine.connect().execution_options(
            stream_results=True, max_row_buffer=_BATCH_ROWS, no_parameters=True
        )
    except exc.SQLAlchemyError as error:
        raise _refused(error) from None
    try:
        if dialect == "postgresql":
            connection = connection.execution_options(postgresql_readonly=True)
            _require_reader(connection)
        if dialect == "sqlite":
            connection.exec_driver_sql("PRAGMA query_only = ON")
            driver: Any = connection.connection.driver_connection
            driver.set_authorizer(_sqlite_allows)
        result = connection.exec_driver_sql(statement)
        return tuple(result.keys()), result
    except exc.SQLAlchemyError as error:
        connection.close()
        raise _refused(error) from None
    except ConfigurationError:
        connection.close()
        raise


def _require_reader(connection: sqlalchemy.Connection) -> None:
    """Refuse a role that can reach more than tables: a query runs with all that it may do."""
    to_type, reaches = connection.exec_driver_sql(_POSTGRESQL_REACHES).one()
    if reaches is not None:
        raise ConfigurationError(
            f"the role in the database's address {reaches}, and a study's query could do the same: put a role into it "
            f"that reads tables alone. The database's administrator types:\n{to_type}"
        )


def _sqlite_allows(action: int, _: str | None, function: str | None, *__: str | None) -> int:
    """Answer what SQLite asks while it compiles; ``function`` is the name of one that is called.

    A virtual table is refused with the rest: to open one SQLite asks for a change of its schema.
    """
    called = action == sqlite3.SQLITE_FUNCTION and (function or "").lower() in _SQLITE_REACHES
    return sqlite3.SQLITE_OK if action in _SQLITE_READS and not called else sqlite3.SQLITE_DENY


def _batches(names: Sequence[str], result: sqlalchemy.CursorResult[Any]) -> Iterator[pa.RecordBatch]:
    columns = [str(place) for place in range(len(names))]
    try:
        for rows in result.partitions(_BATCH_ROWS):
            yield pa.RecordBatch.from_arrays([_array(values) for values in zip(*rows, strict=True)], columns)
    except exc.SQLAlchemyError as error:
        raise _refused(error) from None
    finally:
        result.connection.rollback()
        result.connection.close()


def _array(values: Sequence[object]) -> pa.Array:
    """Numbers or times where all are: a text is read in the notation of the site's file."""
    kinds = {type(value) for value in values} - {type(None)}
    for python, arrow in _TYPES if kinds else ():
        if kinds <= python:
            with suppress(pa.ArrowException, OverflowError):  # it does not hold all of them
                return pa.array(values, arrow)
    return pa.array([_text(value) for value in values], pa.string())


def _text(value: object) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case date() | datetime():
            return value.isoformat()
        case float() | Decimal():
            return _without_point(Decimal(str(value)))
        case int() | str():
            return str(value)
    raise ConfigurationError(f"the query gives a column of {type(value).__name__}: cast it to a number, text or time")


def _without_point(number: Decimal) -> str:
    """A number among texts, the same in every site's notation: 1.234 is 1234e-3."""
    if not number.is_finite() or number == number.to_integral_value():
        return format(number.to_integral_value(), "f")
    negative, digits, exponent = number.as_tuple()
    return f"{'-' * negative}{''.join(map(str, digits))}e{exponent}"


def _refused(error: exc.SQLAlchemyError) -> ConfigurationError:
    original = getattr(error, "orig", None)
    state = str(getattr(original, "sqlstate", None) or "")
    said = str(original).partition("\n")[0]
    if _BEYOND_TABLES.match(said):
        return ConfigurationError(
            "the study's query reaches beyond tables (to a file, another database, a setting, a virtual table): refused"
        )
    shown = f": {said}" if state.startswith("42") or _OF_THE_STATEMENT.match(said) else ""
    return ConfigurationError(
        f"the database refuses the study's query or cannot be reached ({type(original or error).__name__} {state}"
        f"{shown})".replace(" )", ")")
    )
