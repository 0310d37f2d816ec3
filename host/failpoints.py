"""Named points at which a test makes a process die: what is armed, and when its turn has come.

Servers and agents reach a point before and after each durable step (docs/protocol.md 4, 7, 9). What happens there is
the caller's ``act``. Nothing is armed unless a setting says so, and settings take it only beside a seed, which is
refused anywhere but on loopback: a deployment can never have one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import TypeVar

from protocol.errors import ConfigurationError

P = TypeVar("P", bound=StrEnum)


def _nothing() -> None:
    return None


@dataclass(frozen=True, eq=False)
class Failpoints:
    """``act`` runs when ``point`` is reached for the ``turn``-th time, and at no other time."""

    point: str | None = None
    turn: int = 1
    act: Callable[[], None] = _nothing
    _reached: count[int] = field(default_factory=lambda: count(1), repr=False)

    def reach(self, point: StrEnum) -> None:
        """Called at every point, by any thread."""
        if self.point == point.value and next(self._reached) == self.turn:
            self.act()


def parse_failpoint(setting: str, points: type[P]) -> tuple[P, int]:
    """``NAME`` or ``NAME:COUNT`` -> the point, and the how-manieth time it is meant.

    Raises: ConfigurationError, which lists the points
    """
    name, _, turn = setting.partition(":")
    if name not in {point.value for point in points}:
        raise ConfigurationError(f"no failpoint {name!r} (allowed: {', '.join(point.value for point in points)})")
    if turn and not (turn.isascii() and turn.isdigit() and int(turn) > 0):
        raise ConfigurationError(f"failpoint {setting!r}: after the colon stands a number from 1 on, found {turn!r}")
    return points(name), int(turn or 1)


def kill() -> None:
    """kill -9: nothing is flushed, nobody is told."""
    os.kill(os.getpid(), signal.SIGKILL)
