"""The faults of one study, as a list: each with the message or the moment that it strikes.

A message is named by who sends it to whom, what it is for and how many of its kind went before: so a schedule means
the same whatever order threads take turns in, and is shrunk by leaving faults out.

Source:   delta debugging, Zeller and Hildebrandt, IEEE TSE 28(2), 2002: the algorithm ddmin
"""

from __future__ import annotations

import errno
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar
from unittest import mock

from pydantic import Field, model_validator
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError

from harness.attack.troubled_study import kinds
from harness.federation.network import Fate, Judge, Passing
from host.failpoints import Failpoints
from host.frozen import Frozen
from protocol.errors import ConfigurationError
from protocol.sharing import Side
from servers.failpoints import Point

FORMAT: Final = "moiety-schedule/1"
FOR_GOOD: Final = None
Party = str
"""A site by its name, or "server a"."""
SERVERS: Final = {f"server {side.value}": side for side in Side}
NEWCOMER: Final = "c4"
"""In no roster until a change adds it."""


class Level(StrEnum):
    """The level of a run: whole studies with every party's own code, or both servers' with scripted sites."""

    STUDIES = "studies"
    SERVERS = "servers"


class Troubled(Frozen):
    """The fate of the ``of_kind``-th message, from 0, that ``sender`` sends to a server for the same thing."""

    fault: Literal["message"] = "message"
    sender: Party
    to: Side
    kind: str
    of_kind: int
    fate: Fate

    @property
    def names(self) -> tuple[str, Side, str, int]:
        return (self.sender, self.to, self.kind, self.of_kind)


class Away(Frozen):
    """These parties die at once, ``at_s`` after the study was handed in, and come back ``for_s`` later, or never."""

    fault: Literal["away"] = "away"
    who: tuple[Party, ...]
    at_s: float
    for_s: float | None


class Parted(Frozen):
    """Nothing passes from the one to the other, for a time or for good."""

    fault: Literal["parted"] = "parted"
    sender: Party
    to: Side
    at_s: float
    for_s: float | None


class Full(Frozen):
    """A party's disk takes nothing more for a time."""

    fault: Literal["disk full"] = "disk full"
    who: Party
    at_s: float
    for_s: float


class Stepped(Frozen):
    """A party's clock jumps, back where it came from after a time."""

    fault: Literal["clock"] = "clock"
    who: Party
    at_s: float
    by_s: float
    for_s: float


class Crashed(Frozen):
    """A server loses its power where it reaches a failpoint for the ``of_point``-th time, from 0, of all its starts."""

    fault: Literal["crash"] = "crash"
    who: Party
    point: Point
    of_point: int
    for_s: float


class Lie(StrEnum):
    """A site's lie beside what is right."""

    MALFORMED = "malformed"
    OTHER_ROUND = "for another round"
    OTHER_ATTEMPT = "for another attempt"
    OTHER_STUDY = "for another study"
    OTHER_SIDE = "the other server's share"
    AS_REQUESTER = "a release set of a contributor"
    ENDS_THE_STUDY = "an end of a contributor"
    ANOTHER_FOR_THE_SAME = "another contribution after the first"
    DOUBLED = "the same contribution again"
    TWO_FACES = "another update to each server"


class Lies(Frozen):
    """A contributor tells these, in every attempt that it takes part in."""

    fault: Literal["lies"] = "lies"
    who: Party
    lies: tuple[Lie, ...]


class Migrated(Frozen):
    """A server dies; its database is of the schema before when it starts again, and is migrated."""

    fault: Literal["upgrade"] = "upgrade"
    who: Party
    at_s: float
    for_s: float


class RosterChanged(Frozen):
    """Everybody has signed a change of the roster: the ``first`` server's file has it, the other's ``for_s`` later.

    ``adds`` comes to the study with it, nobody where it is empty; who it ``removes`` goes on asking.
    """

    fault: Literal["roster"] = "roster"
    adds: Party = ""
    removes: tuple[Party, ...] = ()
    first: Side
    at_s: float
    for_s: float


Timed = Away | Parted | Full | Stepped | Migrated | RosterChanged
Fault = Annotated[
    Troubled | Away | Parted | Full | Stepped | Migrated | RosterChanged | Crashed | Lies, Field(discriminator="fault")
]


class Schedule(Frozen):
    """``delays_s``: messages are on their way for up to so long each, drawn by the seed and by what they are.

    ``smooth``, of the servers' level: None for two contributors that demand nothing of sums; else three of them demand
    isolation as agents do, and so much of every update is the same in all rounds.
    """

    format: Literal["moiety-schedule/1"] = FORMAT
    seed: int
    delays_s: float
    level: Level = Level.STUDIES
    smooth: float | None = None
    faults: tuple[Fault, ...]

    @model_validator(mode="after")
    def _of_its_level(self) -> Schedule:
        of_servers = [one for one in self.faults if isinstance(one, Crashed | Lies | Migrated | RosterChanged)]
        if self.level is Level.STUDIES and of_servers:
            raise ValueError("crashes, lies, upgrades and changes of the roster are faults of level 'servers' alone")
        return self

    def delays(self, passing: Passing) -> tuple[float, float]:
        """Return how long a message and its answer are on their way."""
        drawn = random.Random(f"{self.seed} delay {named(passing)}")  # noqa: S311  # repeatable, no secret
        return drawn.uniform(0.0, self.delays_s), drawn.uniform(0.0, self.delays_s)

    @property
    def timed(self) -> tuple[Timed, ...]:
        """Those that come at a moment, in order."""
        found = [one for one in self.faults if not isinstance(one, Troubled | Crashed | Lies)]
        return tuple(sorted(found, key=lambda one: one.at_s))

    @property
    def gone(self) -> frozenset[Party]:
        """Return the parties that never come back."""
        return frozenset(
            who for one in self.faults if isinstance(one, Away) and one.for_s is FOR_GOOD for who in one.who
        )

    @property
    def removed(self) -> frozenset[Party]:
        """Whom a change of the roster takes out of it."""
        return frozenset(who for one in self.faults if isinstance(one, RosterChanged) for who in one.removes)

    @classmethod
    def read(cls, text: str, name: str) -> Schedule:
        """Raises: ConfigurationError, which says what is wrong where"""
        try:
            return cls.model_validate_json(text)
        except ValueError as wrong:
            raise ConfigurationError(f"{name} is no schedule of faults: {wrong}") from None


def named(passing: Passing) -> tuple[str, Side, str, int]:
    """As a schedule names a message."""
    return (passing.sender, passing.to, passing.kind, passing.of_kind)


T = TypeVar("T")
MOST_RUNS: Final = 150
"""Runs that shrinking one schedule may take."""


def shortest(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """The items without any part whose absence still ``fails``; of what is left no single one can go.

    Requires: all items fail; ``fails`` answers the same for the same items
    """
    left, parts = list(items), 2
    if left and fails([]):
        return []
    while len(left) > 1:
        size = -(-len(left) // parts)
        starts = range(0, len(left), size)
        kept = next((rest for at in starts if fails(rest := left[:at] + left[at + size :])), None)
        if kept is not None:
            left, parts = kept, max(parts - 1, 2)
        elif size == 1:
            break
        else:
            parts = min(2 * parts, len(left))
    return left


@dataclass
class Shrinking:
    """``broken`` runs a schedule and names the promises that do not hold. ``runs`` counts how often it did.

    The shrunk schedule is one that was seen to fail.
    """

    broken: Callable[[Schedule], frozenset[str]]
    most_runs: int = MOST_RUNS
    runs: int = field(default=0, init=False)

    def shrunk(self, schedule: Schedule, promises: frozenset[str]) -> Schedule:
        """The same schedule where nothing shorter was found to break one of ``promises``."""
        still = schedule.model_copy(update={"delays_s": 0.0})
        if self._fails(still, promises):
            schedule = still
        faults = shortest(
            schedule.faults, lambda some: self._fails(schedule.model_copy(update={"faults": tuple(some)}), promises)
        )
        return schedule.model_copy(update={"faults": tuple(faults)})

    def _fails(self, schedule: Schedule, promises: frozenset[str]) -> bool:
        if self.runs >= self.most_runs:
            return False
        self.runs += 1
        return bool(self.broken(schedule) & promises)


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
        if fate is not None and fate.cut_to < 1 and not (fate.breaks_off or passing.length_bytes):
            fate = None  # an empty body cannot be cut
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
