"""Statements of every request, handed to the driver: SQLAlchemy writes each once and is not asked again.

Executing one through SQLAlchemy takes ten times as long as SQLite does, and a contribution needs a dozen. All others go
through SQLAlchemy.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Dialect, Row, Select, UpdateBase
from sqlalchemy.engine.interfaces import DBAPIConnection


@dataclass(frozen=True)
class _Written:
    """A statement in a dialect's words; ``places`` are its parameters in order, with the values of fixed ones."""

    text: str
    places: tuple[tuple[str, Any], ...]
    positional: bool
    row: Callable[..., Any] | None

    def parameters(self, values: Mapping[str, Any]) -> tuple[Any, ...] | dict[str, Any]:
        given = [(name, values[name] if fixed is None else fixed) for name, fixed in self.places]
        return tuple(value for _, value in given) if self.positional else dict(given)


class Prepared:
    """One statement; its parameters that are left open are given whenever it is executed."""

    def __init__(self, statement: Select[Any] | UpdateBase, returned: Sequence[str] = ()) -> None:
        """``returned``: the columns that a statement which changes something gives back."""
        self._statement = statement
        self._returned = tuple(returned)
        self._in: dict[str, _Written] = {}

    def first(self, dialect: Dialect, connection: DBAPIConnection, values: Mapping[str, Any]) -> Row[Any] | None:
        """The first row, with its columns as attributes like SQLAlchemy's, or None. Raises: the driver's errors"""
        found = self.all(dialect, connection, values)
        return found[0] if found else None

    def all(self, dialect: Dialect, connection: DBAPIConnection, values: Mapping[str, Any]) -> list[Row[Any]]:
        """Every row. Raises: the driver's errors"""
        written = self._written(dialect)
        assert written.row is not None, "a statement that gives nothing back is run"
        cursor = connection.cursor()
        try:
            cursor.execute(written.text, written.parameters(values))
            found = cursor.fetchall()
        finally:
            cursor.close()
        return [cast("Row[Any]", written.row(*one)) for one in found]

    def run(self, dialect: Dialect, connection: DBAPIConnection, values: Mapping[str, Any]) -> None:
        """A statement that changes something, in the transaction of this connection. Raises: the driver's errors"""
        written = self._written(dialect)
        cursor = connection.cursor()
        try:
            cursor.execute(written.text, written.parameters(values))
        finally:
            cursor.close()

    def _written(self, dialect: Dialect) -> _Written:
        known = self._in.get(dialect.name)
        if known is None:
            known = self._in[dialect.name] = _write(self._statement, self._returned, dialect)
        return known


def _write(statement: Select[Any] | UpdateBase, returned: Sequence[str], dialect: Dialect) -> _Written:
    compiled: Any = statement.compile(dialect=dialect)
    names = compiled.positiontup if compiled.positional else list(compiled.params)
    places = tuple((name, compiled.params[name]) for name in names)
    columns = statement.selected_columns.keys() if isinstance(statement, Select) else returned
    row = _row_of(columns) if columns else None
    return _Written(str(compiled), places, bool(compiled.positional), row)


def _row_of(columns: Sequence[str]) -> Callable[..., Any]:
    make: Any = namedtuple  # whose fields a checker wants to read in the source
    row: Callable[..., Any] = make("Row", columns, rename=True)
    return row
