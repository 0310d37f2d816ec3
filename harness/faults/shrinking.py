"""A failing schedule made as short as it can be: faults are left out as long as the same promise still breaks.

Source:   delta debugging, Zeller and Hildebrandt, IEEE TSE 28(2), 2002: the algorithm ddmin
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from harness.faults.schedule import Schedule

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

    Where threads take other turns, a schedule that fails may hold in one run: it is tried ``tries`` times, and the
    shrunk one is one that was seen to fail.
    """

    broken: Callable[[Schedule], frozenset[str]]
    tries: int = 1
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
        for _ in range(self.tries):
            if self.runs >= self.most_runs:
                return False
            self.runs += 1
            if self.broken(schedule) & promises:
                return True
        return False
