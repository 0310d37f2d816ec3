"""The database under a store: how it is opened, and the transactions that every part of a store is made of."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from sqlalchemy import (
    Connection,
    Engine,
    Executable,
    Row,
    Table,
    bindparam,
    create_engine,
    event,
    exc,
    func,
    insert,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.engine.interfaces import DBAPIConnection

from host import log
from host.folder_lock import Owner
from protocol.errors import ConfigurationError, RolledBack, StorageFull, Unavailable
from protocol.rounds.states import RoundKey
from servers.store import tables as t
from servers.store.cache import Prepared, ReadRows
from servers.store.processes import CHANNEL, Beside, News

R = TypeVar("R")
_FULL: Final = frozenset({"SQLITE_FULL", "53100"})
_READ_ONLY: Final = "25006"
_ODD: Final = ("InternalError", "InterfaceError")
"""Drivers' names for a database that is read-only, cut off what stood still, or failed inside; ours has others."""
_MOVE_CURSOR: Final = Prepared(
    update(t.studies).where(t.studies.c.digest == bindparam("of_study")).values(cursor=t.studies.c.cursor + 1)
)
_COUNT_CHANGE: Final = Prepared(
    update(t.history).values(changes=t.history.c.changes + 1).returning(t.history.c.changes), ["changes"]
)
_CHANGES: Final = select(t.history.c.changes)
_NOBODY_STARTS: Final = text("LOCK TABLE boots IN SHARE MODE")
_NEWEST: Final = select(func.max(t.boots.c.boot))
_FOLDER: Final = select(t.lease.c.folder).with_for_update(read=True)
_TELL: Final = text("SELECT pg_notify(:channel, :news)")
_IN_TRANSACTION_S: Final = 10
_log = log.logger("database")


def open_engine(url: str, *, durable: bool = True, beside: Beside | None = None) -> Engine:
    """``durable=False`` is for nonces: a commit need not reach the disk before it returns.

    ``beside``: of several processes none keeps the others waiting by a transaction in which it stands still, and
    whoever takes its place ends its connections by its name.
    """
    engine = create_engine(url)
    sqlite = engine.dialect.name == "sqlite"

    def prepare(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        if sqlite:
            try:
                cursor.execute("PRAGMA journal_mode=WAL")
            except sqlite3.DatabaseError as error:
                if type(error) is not sqlite3.DatabaseError:  # one of its kinds: locked, full, not to be opened
                    raise
                raise ConfigurationError(
                    f"{engine.url.database} is no whole SQLite database ({error}): put a backup in its place "
                    "(docs/operating.md)"
                ) from None
            cursor.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            cursor.execute("PRAGMA foreign_keys=ON")
            cursor.execute("PRAGMA busy_timeout=5000")
        else:
            if not durable:
                cursor.execute("SET synchronous_commit TO OFF")
            if beside is not None:
                cursor.execute("SELECT set_config('application_name', %s, false)", (beside.name,))
                cursor.execute(f"SET idle_in_transaction_session_timeout = '{_IN_TRANSACTION_S}s'")
            connection.commit()  # a rollback would take it back
        cursor.close()

    event.listen(engine, "connect", prepare)
    return engine


def database_exists(url: str) -> bool:
    """Return whether there is a database to open: opening an SQLite file that is not there would make it."""
    parsed = make_url(url)
    return parsed.get_backend_name() != "sqlite" or Path(parsed.database or "").exists()


class _Connections:
    """An engine, and one of its connections kept for the thread that asks first: the one that the server runs on.

    Taking a connection out of the pool and putting it back costs more than most statements.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sqlite = engine.dialect.name == "sqlite"
        self._thread: int | None = None
        self._kept: Connection | None = None
        self._driver: DBAPIConnection | None = None
        self._only_on: DBAPIConnection | None = None

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction; inside of one, or on another thread, on a connection of its own. Raises: Unavailable"""
        if self._kept is None:
            self._thread, self._kept = threading.get_ident(), self.engine.connect()
            self._driver = self._kept.connection.driver_connection
        if self._thread != threading.get_ident() or self._kept.in_transaction():
            with self.engine.begin() as connection:
                yield connection
            return
        if self._only_on is not None and self._kept.connection.driver_connection is not self._only_on:
            raise Unavailable("the connection on which a study was held is gone; nothing was stored; try again")
        with self._kept.begin():
            yield self._kept

    @contextmanager
    def kept_to(self) -> Iterator[None]:
        """While the block runs this thread's transactions are on the connection of now, and fail once that is gone:
        one that is made anew holds none of its locks.
        """
        before = self._only_on
        if before is None and self._kept is not None:
            self._only_on = self._kept.connection.driver_connection
        try:
            yield
        finally:
            self._only_on = before

    def require_kept(self) -> None:
        """The next transaction is on the connection that is kept: this thread's, and in none."""
        if self._kept is not None and (self._thread != threading.get_ident() or self._kept.in_transaction()):
            raise AssertionError("a study is held on the event loop alone, and outside of a transaction")

    def reading(self) -> DBAPIConnection | None:
        """The driver's own connection for a look; None, where that takes a transaction: SQLite begins none for it."""
        kept = self._kept
        if not self._sqlite or kept is None or self._thread != threading.get_ident() or kept.in_transaction():
            return None
        return self._driver

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = self._driver = None
        self.engine.dispose()


class Database:
    """Short transactions. ``on_change`` is told the study after every one that moved its cursor."""

    def __init__(
        self,
        url: str,
        on_change: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        on_held: Callable[[str], None] = lambda study: None,
        on_letter: Callable[[str, str, str], None] | None = None,
        beside: Beside | None = None,
    ) -> None:
        """``clock`` says when something was stored, for people to read; ``on_held`` is told the study of every
        contribution that left its cursor where it was; ``on_letter`` study, recipient and topic of every letter, in
        place of ``on_change``. ``beside``: one of several processes, over PostgreSQL.
        """
        self.beside = beside
        self._engine = open_engine(url, beside=beside)
        self._connections = _Connections(self._engine)
        self._of_nonces = _Connections(open_engine(url, durable=False, beside=beside))
        self._dialect = self._engine.dialect
        self._driver: Any = self._dialect.loaded_dbapi
        self._not_now: tuple[type[Exception], ...] = tuple(
            getattr(of, name) for of in (exc, self._driver) for name in ("OperationalError", *_ODD)
        )
        self._on_change = on_change
        self._on_held = on_held
        self._on_letter = on_letter or (lambda study, recipient, topic: on_change(study))
        self._clock = clock
        self._touched: list[str] = []
        self._held: list[str] = []
        """Contributions that moved no cursor: changes of the database like any others."""
        self._letters: list[tuple[str, str, str]] = []
        self._rows = ReadRows(kept=self._dialect.name == "sqlite")
        self._emptied: dict[str, int] = {}
        self._without_output: dict[str, int] = {}
        """Each study's round before which this process has forgotten all that it forgets. Looking through all
        rounds in every one would make a study slower as it goes on.
        """
        self._most_changes = 0
        self._boot: int | None = None

    def ready(self) -> None:
        """Return if the database answers. Raises: Unavailable"""
        with self._begin() as connection:
            connection.execute(select(1))
            self._require_newest(connection)

    def close(self) -> None:
        self._connections.close()
        self._of_nonces.close()

    def next_boot(self) -> int:
        """Return how often a server has been started on this store, this time included."""
        with self._begin() as connection:
            boot = self._new_boot(connection)
            if self._engine.dialect.name != "sqlite":
                connection.execute(update(t.lease).values(boot=boot, holder=None, folder=None, until_s=0.0))
        self._boot = boot
        return boot

    @staticmethod
    def _new_boot(connection: Connection) -> int:
        made = connection.execute(insert(t.boots).values())
        return int(made.inserted_primary_key[0])  # type: ignore[index]  # an insert of one row has a key

    def _require_newest(self, connection: Connection) -> None:
        """Called in every transaction that something follows from: of two processes on one database the newest writes.

        The number of this start is compared while nobody can start: a start waits for transactions that are under
        way, and those that come after it see it. SQLite's one process is held by the lock on its folder. Of several
        processes one drives, and its number is compared; the others' files must lie where that one finds them.
        Raises: Unavailable
        """
        if self._engine.dialect.name == "sqlite":
            return
        if self._boot is None:
            if self.beside is not None and connection.execute(_FOLDER).scalar_one() != self.beside.folder:
                raise Unavailable(
                    "no process that drives this server's rounds shares this one's data_dir: start one with role "
                    "'driver' on the same data_dir"
                )
            return
        connection.execute(_NOBODY_STARTS)
        if connection.execute(_NEWEST).scalar_one() != self._boot:
            raise Unavailable(
                "another process of this server has started on this database since; this one changes nothing any more: "
                "stop one of them"
            )

    def owned_by(self, owner: Owner) -> Owner:
        """Return the database's owner: ``owner``, if it was nobody's."""
        with self._begin() as connection:
            row = connection.execute(select(t.owner)).first()
            if row is None:
                connection.execute(insert(t.owner).values(asdict(owner)))
                return owner
        return Owner(**row._mapping)

    def size_bytes(self) -> int:
        """Return the size of the database on its disk; for threads."""
        if self._engine.dialect.name == "sqlite":
            path = Path(self._engine.url.database or "")
            files = (path, path.with_name(f"{path.name}-wal"))
            return sum(file.stat().st_size for file in files if file.exists())
        with self._reading() as connection:
            return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A look on a connection of its own, for any thread. Raises: Unavailable"""
        try:
            with self._engine.connect() as connection:
                yield connection
        except self._not_now as error:
            raise explained(error) from error

    @contextmanager
    def _begin(self, *, only_adds: bool = False) -> Iterator[Connection]:
        """``only_adds``: unless it moves a study's cursor, no study and no round is changed."""
        for noted in (self._touched, self._held, self._letters):
            noted.clear()
        counted = self._most_changes
        try:
            with self._connections.begin() as connection:
                yield connection
                if self._touched or self._held or self._letters:
                    moved = _COUNT_CHANGE.first(self._dialect, connection.connection, {})
                    assert moved is not None, "there is a history from the first migration on"
                    counted = self._not_fewer(moved.changes, counted + 1)
                    self._tell(connection, counted)
            self._most_changes = max(self._most_changes, counted)
            self._wake()
        except self._not_now as error:
            self._wake()  # where the answer to the commit was lost it is stored all the same
            raise explained(error) from error
        finally:
            if not only_adds:
                self._rows.forget()

    def _wake(self) -> None:
        """Wake waiters and invalidate cached reads."""
        if self._touched or self._letters:
            self._rows.forget()
        for study in self._touched:
            self._on_change(study)
        for letter in self._letters:
            self._on_letter(*letter)
        for study in self._held:
            self._on_held(study)

    def _tell(self, connection: Connection, counted: int) -> None:
        """The other processes hear of it once it is committed."""
        if self.beside is not None:
            shown = dict.fromkeys((*self._touched, *(study for study, _, _ in self._letters)))
            news = News(self.beside.name, counted, tuple(shown), tuple(self._held))
            connection.execute(_TELL, {"channel": CHANNEL, "news": news.text()})

    def _not_fewer(self, found: int, least: int) -> int:
        """Raises: RolledBack, when the database has fewer changes than it had while this process runs"""
        if found < least:
            raise RolledBack(
                f"the database of this server has {found} changes and had {max(least - 1, self._most_changes)} a while "
                "ago: an older copy, or a replica that lags, took its place. Put the newest one back and start again; "
                "if there is none: moiety server accept-rollback"
            )
        return found

    def changes(self) -> int:
        """Return how many changes of studies were stored (docs/protocol.md 23). Raises: RolledBack, when they were more
        while this process runs
        """
        with self._begin() as connection:
            self._require_newest(connection)
            found = self._not_fewer(connection.execute(_CHANGES).scalar_one(), self._most_changes)
        self._most_changes = found
        return found

    def _rows_of(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Sequence[Row[Any]]:
        """A look in a transaction of its own."""
        with self._begin() as connection:
            return connection.execute(statement, values).all()

    def _scalar(self, statement: Executable) -> Any:  # noqa: ANN401  # of whatever type the column is
        """The first column of the first row; None, where there is none."""
        with self._begin() as connection:
            return connection.execute(statement).scalar()

    def _first(self, statement: Prepared, values: Mapping[str, Any]) -> Row[Any] | None:
        found = self._all(statement, values)
        return found[0] if found else None

    def _all(self, statement: Prepared, values: Mapping[str, Any]) -> list[Row[Any]]:
        kept = self._connections.reading()
        if kept is None:
            with self._begin() as connection:
                return statement.all(self._dialect, connection.connection, values)
        try:
            return statement.all(self._dialect, kept, values)
        except self._not_now as error:
            raise explained(error) from error

    def _remembered(self, statement: Prepared, values: Mapping[str, Any], made: Callable[[Row[Any]], R]) -> R | None:
        """The first row as a record, read again after every change. Raises: Unavailable"""
        found, seen = self._rows.look(statement, values)
        if found is None:
            row = self._first(statement, values)
            found = None if row is None else made(row)
            self._rows.keep(seen, statement, values, found)
        return cast("R | None", found)

    def _run(self, connection: Connection, statement: Prepared, values: Mapping[str, Any]) -> None:
        statement.run(self._dialect, connection.connection, values)

    def _touch(self, connection: Connection, study: str) -> None:
        self._move_cursor(connection, study)
        self._touched.append(study)

    def _move_cursor(self, connection: Connection, study: str) -> None:
        self._require_newest(connection)
        self._run(connection, _MOVE_CURSOR, {"of_study": study})


def explained(error: Exception) -> Unavailable:
    """Explain a driver's error by its code, SQLite's own or PostgreSQL's; SQLAlchemy's errors hold the driver's."""
    said = error.orig if isinstance(error, exc.DBAPIError) else error
    code = getattr(said, "sqlite_errorname", getattr(said, "sqlstate", None))
    if code in _FULL:
        return StorageFull("the database has no room left; nothing was stored; send the same again later")
    if code == _READ_ONLY:
        return Unavailable("the database takes no changes, like a replica that was not promoted; try again later")
    if any(kind.__name__ in _ODD for kind in type(said).__mro__):
        _log.warning("database_failed", code=code, error=type(said).__name__)
    return Unavailable("the database does not answer; try again later")


def at(table: Table, key: RoundKey) -> tuple[Any, ...]:
    return (table.c.study == key.study, table.c.round == key.round, table.c.attempt == key.attempt)


def at_any(table: Table) -> tuple[Any, ...]:
    """``at`` in a statement that is made once: its key is given when it is executed, as ``key_values``."""
    return (
        table.c.study == bindparam("at_study"),
        table.c.round == bindparam("at_round"),
        table.c.attempt == bindparam("at_attempt"),
    )


def key_values(key: RoundKey) -> dict[str, Any]:
    return {"at_study": key.study, "at_round": key.round, "at_attempt": key.attempt}


def forget(connection: Connection, table: Table, column: str, study: str, rounds: tuple[int, int]) -> list[str]:
    """Unlink the files of rounds from the first up to before the second from their rows; -> the files to delete."""
    where = (table.c.study == study, table.c.round.between(rounds[0], rounds[1] - 1), table.c[column].is_not(None))
    names = connection.execute(select(table.c[column]).where(*where)).scalars().all()
    if names:
        connection.execute(update(table).where(*where).values({column: None}))
    return [str(name) for name in names]
