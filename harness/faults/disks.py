"""Disks of simulated parties that take nothing more for a time: what is written there fails as the system would say.

Files fail where they are to reach the disk (``fsync``), which is where a full disk shows at the latest; a database
fails at any statement that writes.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError

_READS = ("select", "pragma")


class _FullError(sqlite3.OperationalError):
    """As SQLite's own."""

    sqlite_errorname = "SQLITE_FULL"


class Disks:
    """``full`` counts, by party, why its disk is full now; ``refused`` how often something was not written."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.full: Counter[str] = Counter()
        self.refused = 0
        self._folders = {f"{folder.resolve()}/": party for party, folder in folders.items()}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """In this process every write to these folders asks here first."""
        event.listen(Engine, "before_cursor_execute", self._before_statement)
        try:
            with mock.patch("os.fsync", self._before(os.fsync)):
                yield
        finally:
            event.remove(Engine, "before_cursor_execute", self._before_statement)

    def _before(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def fsync(handle: int) -> None:
            if +self.full and self._takes_nothing(os.readlink(f"/proc/self/fd/{handle}")):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(handle)

        return fsync

    def _takes_nothing(self, path: str) -> bool:
        full = any(self.full[party] and path.startswith(folder) for folder, party in self._folders.items())
        self.refused += full
        return full

    def _before_statement(
        self, connection: Connection, cursor: object, statement: str, parameters: object, context: object, many: bool
    ) -> None:
        place = connection.engine.url.database or ""
        if +self.full and not statement.lower().startswith(_READS) and self._takes_nothing(str(Path(place).resolve())):
            raise OperationalError(statement, None, _FullError("database or disk is full"))
