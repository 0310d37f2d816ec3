"""A site's own database as a source: the study's query, read-only, over a connection that only the site knows.

The address, with its password, comes from a file or the environment and stands in no error, log or ledger. What a
database says about an error is shown only where it speaks of the statement, since it may quote rows otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import sqlalchemy
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from client_agent.data.source import Table
from host.private_files import read_secret
from protocol.errors import ConfigurationError

URL_VARIABLE: Final = "MOIETY_DATABASE_URL"
_BATCH_ROWS: Final = 2**14
_READS: Final = re.compile(r"^\s*(select|with)\b", re.IGNORECASE)
_OF_THE_STATEMENT: Final = re.compile(r"^(no such (table|column|function)|near |ambiguous column|syntax error)")
_DIALECTS: Final = ("sqlite", "postgresql", "duckdb")


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
    if not _READS.match(query) or ";" in query.strip().rstrip(";"):
        raise ConfigurationError("schema.query is not one statement that reads: begin with SELECT or WITH, without ';'")
    engine = _engine(url)
    names, rows = _opened(engine, query)
    return Table("the database", names, len(names), _batches(names, rows), query)


def _engine(url: str) -> sqlalchemy.Engine:
    try:
        parsed = sqlalchemy.make_url(url)
        dialect = parsed.get_backend_name()
        if dialect not in _DIALECTS:
            raise ConfigurationError(f"databases are {', '.join(_DIALECTS)}; the address begins with another name")
        if dialect != "postgresql" and not Path(parsed.database or "").is_file():
            raise ConfigurationError("the address of the database names no file that is here")
        read_only = {"read_only": True} if dialect == "duckdb" else {}
        return sqlalchemy.create_engine(parsed, connect_args=read_only, hide_parameters=True, poolclass=NullPool)
    except exc.NoSuchModuleError:
        raise ConfigurationError("no driver for this kind of database: pip install 'moiety[duckdb]'") from None
    except exc.ArgumentError:
        raise ConfigurationError("the address of the database is none that SQLAlchemy knows: dialect://...") from None


def _opened(engine: sqlalchemy.Engine, query: str) -> tuple[tuple[str, ...], sqlalchemy.CursorResult[Any]]:
    dialect = engine.dialect.name
    try:
        connection = engine.connect().execution_options(
            stream_results=True, max_row_buffer=_BATCH_ROWS, no_parameters=True
        )
        if dialect == "postgresql":
            connection = connection.execution_options(postgresql_readonly=True)
        if dialect == "sqlite":
            connection.exec_driver_sql("PRAGMA query_only = ON")
        result = connection.exec_driver_sql(query.strip().rstrip(";"))
        return tuple(result.keys()), result
    except exc.SQLAlchemyError as error:
        raise _refused(error) from None


def _batches(names: Sequence[str], result: sqlalchemy.CursorResult[Any]) -> Iterator[pa.RecordBatch]:
    columns = [str(place) for place in range(len(names))]
    try:
        for rows in result.partitions(_BATCH_ROWS):
            arrays = [pa.array([_text(value) for value in values], pa.string()) for values in zip(*rows, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, columns)
    except exc.SQLAlchemyError as error:
        raise _refused(error) from None
    finally:
        result.connection.rollback()
        result.connection.close()


def _text(value: object) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case date() | datetime():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case int() | float() | str():
            return str(value)
    raise ConfigurationError(f"the query gives a column of {type(value).__name__}: cast it to a number, text or time")


def _refused(error: exc.SQLAlchemyError) -> ConfigurationError:
    original = getattr(error, "orig", None)
    state = str(getattr(original, "sqlstate", None) or "")
    said = str(original).partition("\n")[0]
    shown = f": {said}" if state.startswith("42") or _OF_THE_STATEMENT.match(said) else ""
    return ConfigurationError(
        f"the database refuses the study's query or cannot be reached ({type(original or error).__name__} {state}"
        f"{shown})".replace(" )", ")")
    )
