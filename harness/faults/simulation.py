"""The result of simulating one schedule of faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from harness.faults.schedule import Schedule

MEMORY: Final = Path("/dev/shm")  # noqa: S108  # a folder of random name is made in it


@dataclass(frozen=True)
class Simulated:
    """What became of one schedule. ``steps`` are requests that were sent; ``failed`` says which promises do not hold,
    each with its name before a colon. ``schedule`` holds every fault that struck; ``cpu_s`` is this process's."""

    seed: int
    steps: int
    injected: Counter[str]
    ends: tuple[str, ...]
    schedule: Schedule
    failed: tuple[str, ...] = field(default=())
    cpu_s: float = field(default=0.0, compare=False)

    @property
    def promises(self) -> frozenset[str]:
        """The names of those that do not hold."""
        return frozenset(one.split(":")[0] for one in self.failed)
