"""The faults of one study, as a list: each with the message or the moment that it strikes.

A message is named by who sends it to whom, what it is for and how many of its kind went before: so a schedule means
the same whatever order threads take turns in, and is shrunk by leaving faults out.
"""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.federation.memory.network import Fate, Passing
from protocol.errors import ConfigurationError
from protocol.sharing import Side

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


class _Fault(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Troubled(_Fault):
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


class Away(_Fault):
    """These parties die at once, ``at_s`` after the study was handed in, and come back ``for_s`` later, or never."""

    fault: Literal["away"] = "away"
    who: tuple[Party, ...]
    at_s: float
    for_s: float | None


class Parted(_Fault):
    """Nothing passes from the one to the other, for a time or for good."""

    fault: Literal["parted"] = "parted"
    sender: Party
    to: Side
    at_s: float
    for_s: float | None


class Full(_Fault):
    """A party's disk takes nothing more for a time."""

    fault: Literal["disk full"] = "disk full"
    who: Party
    at_s: float
    for_s: float


class Stepped(_Fault):
    """A party's clock jumps, back where it came from after a time."""

    fault: Literal["clock"] = "clock"
    who: Party
    at_s: float
    by_s: float
    for_s: float


class Crashed(_Fault):
    """A server loses its power where it reaches a failpoint for the ``of_point``-th time, from 0, of all its starts."""

    fault: Literal["crash"] = "crash"
    who: Party
    point: str
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


class Lies(_Fault):
    """A contributor tells these, in every attempt that it takes part in."""

    fault: Literal["lies"] = "lies"
    who: Party
    lies: tuple[Lie, ...]


class Migrated(_Fault):
    """A server dies; its database is of the schema before when it starts again, and is migrated."""

    fault: Literal["upgrade"] = "upgrade"
    who: Party
    at_s: float
    for_s: float


class RosterChanged(_Fault):
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


class Schedule(BaseModel):
    """``delays_s``: messages are on their way for up to so long each, drawn by the seed and by what they are.

    ``smooth``, of the servers' level: None for two contributors that demand nothing of sums; else three of them demand
    isolation as agents do, and so much of every update is the same in all rounds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal["moiety-schedule/1"] = FORMAT
    seed: int
    delays_s: float
    level: Level = Level.STUDIES
    smooth: float | None = None
    faults: tuple[Fault, ...]

    @model_validator(mode="after")
    def _of_its_level(self) -> Schedule:
        if self.level is Level.STUDIES and any(isinstance(one, Migrated | RosterChanged) for one in self.faults):
            raise ValueError("upgrades and changes of the roster are faults of level 'servers' alone")
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
