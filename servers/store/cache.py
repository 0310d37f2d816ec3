"""Statements that are compiled once, and rows and studies' views that are kept until they change.

Executing one through SQLAlchemy takes ten times as long as SQLite does, and a contribution needs a dozen. All others go
through SQLAlchemy.

A contribution reads its study three times and its round four; between two contributions neither changes. Only where
one process alone writes, which is what SQLite's is held to, can it know that.
"""

from __future__ import annotations

from collections import defaultdict, namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from sqlalchemy import Dialect, Row, Select, UpdateBase
from sqlalchemy.engine.interfaces import DBAPIConnection

from protocol.messages.control import StudyView, news, shared_news
from protocol.messages.paths import EVERY_SITE
from servers.store.records import MailRecord


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


_MOST: Final = 64


class ReadRows:
    """Safe for threads: what was read before a change is not kept after it."""

    def __init__(self, *, kept: bool) -> None:
        """``kept``: False where another process may write."""
        self._kept = kept
        self._records: dict[tuple[int, tuple[Any, ...]], Any] = {}
        self._changes = 0

    def look(self, statement: Prepared, values: Mapping[str, Any]) -> tuple[Any, int]:
        """The record, or None; and what :meth:`keep` is told with the record that was read instead."""
        return self._records.get((id(statement), tuple(values.values()))), self._changes

    def keep(self, seen: int, statement: Prepared, values: Mapping[str, Any], record: object | None) -> None:
        """Unless something changed since the look."""
        if self._kept and record is not None and seen == self._changes:
            if len(self._records) >= _MOST:
                self._records.clear()
            self._records[id(statement), tuple(values.values())] = record

    def forget(self) -> None:
        """Something has changed, or may have."""
        self._changes += 1
        self._records.clear()


@dataclass(frozen=True)
class Shown:
    """One caller's view, and the digest of what a contributor acts on in it."""

    view: StudyView
    news: str


class StudyPicture:
    """A study at one cursor; sites that have the same letters see the same view."""

    def __init__(self, everybody: StudyView, mail: Sequence[MailRecord], number: int) -> None:
        """``mail``: by topic and sender. ``number``: of the study's changes when it was read."""
        self.everybody = everybody
        self.number = number
        self._shared_news = shared_news(everybody)
        self._mail: dict[str, list[tuple[str, MailRecord]]] = defaultdict(list)
        for one in mail:
            self._mail[one.recipient].append((f"{one.topic}/{one.sender}", one))
        self._shown: dict[tuple[str, ...], Shown] = {}

    def shown_to(self, caller: str) -> Shown:
        """The same for everybody with the same letters."""
        own, to_all = self._mail.get(caller, ()), self._mail.get(EVERY_SITE, ())
        of_caller = sorted((*own, *to_all), key=lambda named: (named[1].topic, named[1].sender))
        mail = tuple(name for name, one in of_caller if one.sender != caller)
        shown = self._shown.get(mail)
        if shown is None:
            view = self.everybody.model_copy(update={"mail": mail}) if mail else self.everybody
            shown = self._shown[mail] = Shown(view, news(self._shared_news, mail))
        return shown
