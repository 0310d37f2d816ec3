"""One process at a time decides about a study."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sqlalchemy import func, select, text

from protocol.errors import Unavailable
from servers.processes.beside import lock_halves, lock_number
from servers.store.database import Database

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
