"""Several processes on one PostgreSQL: one drives, and one at a time decides about a study."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from sqlalchemy import Connection, func, select, text, update

from protocol.errors import Unavailable
from servers.store import tables as t
from servers.store.database import Database
from servers.store.processes import CHANNEL, Beside, News, lock_halves, lock_number, parse_news

_LOCK_WITHIN_S: Final = 5.0
_LOCK_WITHIN: Final = text("SELECT set_config('lock_timeout', :milliseconds, true)")
_END_STANDING: Final = text(
    "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.granted "
    "AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.classid = :high AND l.objid = :low AND a.state <> 'active' "
    "AND a.state_change < clock_timestamp() - make_interval(secs => :seconds)"
)
"""A lock on a study is held for milliseconds: whoever has held it for seconds and asks nothing stands still."""


class Alone(Database):
    """See ``interface.Store``."""

    @contextmanager
    def alone(self, study: str) -> Iterator[None]:
        """While the block runs no other process of this server decides anything about the study: what is read in it is
        so until it ends. Nothing is awaited inside, and what it commits is committed at once.

        The lock belongs to the connection that the block writes on: whoever stood still in it and was cut off writes
        nothing any more. A server that is one process needs none. Raises: Unavailable
        """
        if self.beside is None:
            yield
            return
        number = lock_number(hashlib.sha256(study.encode()).digest())
        self._connections.require_kept()
        try:
            with self._begin() as connection:
                connection.execute(_LOCK_WITHIN, {"milliseconds": str(round(1000 * _LOCK_WITHIN_S))})
                connection.execute(select(func.pg_advisory_lock(number)))
        except Unavailable:
            with self._begin() as connection:
                high, low = lock_halves(number)
                connection.execute(_END_STANDING, {"high": high, "low": low, "seconds": _LOCK_WITHIN_S})
            raise
        with self._connections.kept_to():
            try:
                yield
            finally:
                with suppress(Unavailable), self._begin() as connection:  # where the connection is gone, so is the lock
                    connection.execute(select(func.pg_advisory_unlock(number)))


_NOW: Final = func.extract("epoch", func.clock_timestamp())
_END_CONNECTIONS: Final = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name = :holder AND pid <> pg_backend_pid()"
)
_LOOKED_EVERY_S: Final = 0.5


class LeaseRows(Database):
    """See ``interface.Store``."""

    def take_lease(self, seconds: float) -> int | None:
        beside = self._one_of_several()
        with self._begin() as connection:
            if not self._over(connection):
                return None
            held = connection.execute(select(t.lease).with_for_update()).one()
            if not self._over(connection):
                return None
            if held.holder is not None and held.holder != beside.name:
                connection.execute(_END_CONNECTIONS, {"holder": held.holder})
            boot = self._new_boot(connection)
            taken = {"boot": boot, "holder": beside.name, "folder": beside.folder, "until_s": _NOW + seconds}
            connection.execute(update(t.lease).values(taken))
        self._boot = boot
        return boot

    def renew_lease(self, seconds: float) -> bool:
        with self._begin() as connection:
            mine = update(t.lease).where(t.lease.c.boot == self._boot).values(until_s=_NOW + seconds)
            return connection.execute(mine).rowcount == 1

    def let_go_of_lease(self) -> None:
        with self._begin() as connection:
            connection.execute(update(t.lease).where(t.lease.c.boot == self._boot).values(until_s=0.0))

    def require_driver(self) -> None:
        with self._begin() as connection:
            self._require_newest(connection)
            over = self._over(connection)
        if over:
            raise Unavailable("no process drives this server's rounds: start one with role 'driver'")

    def listen(self, heard: Callable[[News], None], over: threading.Event) -> None:
        """Raises: the driver's errors, when the connection ends"""
        arguments, options = self._dialect.create_connect_args(self._engine.url)
        connection: Any = self._driver.connect(*arguments, **{**options, "autocommit": True})
        with connection:
            connection.execute(f"LISTEN {CHANNEL}")
            while not over.is_set():
                for one in connection.notifies(timeout=_LOOKED_EVERY_S):
                    heard(parse_news(one.payload))
                    if over.is_set():
                        return

    @staticmethod
    def _over(connection: Connection) -> bool:
        until_s, now_s = connection.execute(select(t.lease.c.until_s, _NOW)).one()
        return float(until_s) <= float(now_s)

    def _one_of_several(self) -> Beside:
        if self.beside is None:
            raise AssertionError("a server that is one process takes no lease")
        return self.beside
