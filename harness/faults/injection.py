"""Faults of messages, disks and machines, as a schedule says or a seed draws."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from unittest import mock

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError

from harness.adversaries.troubled_study import kinds
from harness.faults.schedule import Schedule, Troubled, named
from harness.federation.memory.network import Fate, Judge, Passing
from host.failpoints import Failpoints
from protocol.sharing import Side

Draw = Callable[[Passing], Fate | None]


class FaultyNetwork(Judge):
    """``found`` are the faults of messages that struck; ``steps`` counts all messages."""

    def __init__(self, schedule: Schedule, draw: Draw | None = None) -> None:
        """``draw`` decides where the seed does, in place of the schedule's faults of messages."""
        super().__init__()
        self._schedule = schedule
        self._listed = {one.names: one.fate for one in schedule.faults if isinstance(one, Troubled)}
        self._draw = draw or self._from_list
        self.found: list[Troubled] = []
        self.injected: Counter[str] = Counter()
        self.parted: Counter[tuple[str, Side]] = Counter()
        self.steps = 0

    def _from_list(self, passing: Passing) -> Fate | None:
        return self._listed.get(named(passing))

    def fate(self, passing: Passing) -> Fate:
        self.steps += 1
        if self.parted[passing.sender, passing.to]:
            self.injected["parted"] += 1
            return Fate(arrives=False)
        fate = self._draw(passing)
        if fate is not None:
            sender, to, kind, of_kind = named(passing)
            self.found.append(Troubled(sender=sender, to=to, kind=kind, of_kind=of_kind, fate=fate))
            self.injected.update(kinds(fate))
        there_s, back_s = self._schedule.delays(passing)
        fate = fate or Fate()
        return replace(fate, held_s=fate.held_s + there_s, answer_held_s=fate.answer_held_s + back_s)


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


class Died(BaseException):
    """A server is no more: nobody catches this."""


class Reaching(Failpoints):
    """Counts a server's steps through all of its starts; ``at`` hears of each."""

    def __init__(self, side: Side, at: Callable[[Side, str, int], None], counted: Counter[tuple[Side, str]]) -> None:
        super().__init__()
        object.__setattr__(self, "_heard", (side, at, counted))

    def reach(self, point: StrEnum) -> None:
        side, at, counted = self._heard  # type: ignore[attr-defined]  # a frozen class's own
        number = counted[side, point.value]
        counted[side, point.value] += 1
        at(side, point.value, number)


class PowerCut:
    """Knows which files' bytes and which folders' names have reached the disk."""

    def __init__(self) -> None:
        self._files: set[tuple[int, int]] = set()
        self._names: dict[str, set[str]] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        with mock.patch("os.fsync", self._before(os.fsync)):
            yield

    def _before(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def fsync(handle: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            sync(handle)
            if path.is_dir():
                self._names[str(path)] = {one.name for one in path.iterdir()}
            else:
                found = os.fstat(handle)
                self._files.add((found.st_dev, found.st_ino))

        return fsync

    def cut(self, folder: Path) -> None:
        """Cut what is left in a folder of whole files."""
        names = self._names.get(str(folder), set())
        for file in folder.iterdir() if folder.is_dir() else ():
            found = file.stat()
            if file.name not in names:
                file.unlink()
            elif (found.st_dev, found.st_ino) not in self._files:
                file.write_bytes(b"")
