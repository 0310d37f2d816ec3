"""One study under a schedule of faults: what every fault does to the parties, and the result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from harness.faults.schedule import (
    SERVERS,
    Away,
    Disks,
    FaultyNetwork,
    Full,
    Parted,
    Party,
    RosterChanged,
    Schedule,
    Stepped,
    Timed,
)
from harness.versions import versions
from host.frozen import Frozen
from host.output_files import rewrite
from host.settings import read_text
from protocol.errors import ConfigurationError

MEMORY: Final = Path("/dev/shm")  # noqa: S108  # a folder of random name is made in it
STARTED_AGAIN_S: Final = 5.0
"""A supervisor of processes waits so long before it starts one again that could not start."""
WITHIN_S: Final = 6 * 3600.0
Action = Callable[[], None]


@dataclass(frozen=True)
class Simulated:
    """The result of one schedule. ``steps`` are requests that were sent; ``failed`` says which promises do not hold,
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
        return frozenset(one.split(":")[0] for one in self.failed)


class Simulation(ABC):
    """Faults strike at their moments on the virtual clock. Subclasses run whole studies, or the servers alone."""

    schedule: Schedule
    network: FaultyNetwork
    disks: Disks
    off_s: Counter[Party]
    """Seconds by which each party's clock is off."""

    @abstractmethod
    def run(self) -> Simulated: ...

    @abstractmethod
    def later(self, at_s: float, action: Action) -> None:
        """Act so long after the study was handed in."""

    @abstractmethod
    def goes(self, party: Party) -> None:
        """A party dies; it comes back once it was told to as often as it died."""

    @abstractmethod
    def comes_back(self, party: Party) -> None: ...

    def foresee(self) -> None:
        """Plan every accident of the schedule."""
        for fault in self.schedule.timed:
            self.later(fault.at_s, partial(self._begin, fault))
            if fault.for_s is not None:
                self.later(fault.at_s + fault.for_s, partial(self.strike, fault, begins=False))

    def _begin(self, fault: Timed) -> None:
        self.network.injected[_words(fault)] += 1
        self.strike(fault, begins=True)

    def strike(self, fault: Timed, *, begins: bool) -> None:
        """Let an accident begin, or end."""
        by = 1 if begins else -1
        match fault:
            case Away(who=who):
                for party in who:
                    (self.goes if begins else self.comes_back)(party)
            case Parted(sender=sender, to=to):
                self.network.parted[sender, to] += by
            case Full(who=who):
                self.disks.full[who] += by
            case Stepped(who=who, by_s=by_s):
                self.off_s[who] += by * by_s  # type: ignore[assignment]  # seconds are counted too
            case _:
                raise AssertionError(f"a schedule of whole studies has no fault {fault.fault!r}")

    def result(self, ends: set[str], failed: tuple[str, ...]) -> Simulated:
        if self.disks.refused:
            self.network.injected["write refused"] += self.disks.refused
        network = self.network
        return Simulated(
            self.schedule.seed, network.steps, network.injected, tuple(sorted(ends)), self.schedule, failed
        )


def _words(fault: Timed) -> str:
    """The kind of an accident, as it is counted."""
    match fault:
        case Away(who=who, for_s=for_s):
            several = "of several at once" if len(who) > 1 else "of a server" if who[0] in SERVERS else "of a site"
            return f"{'loss' if for_s is None else 'restart'} {several}"
        case RosterChanged(adds=adds):
            return "a site joined" if adds else "a site removed"
        case Stepped():
            return "clock stepped"
        case _:
            return fault.fault


FORMAT: Final = "moiety-faults/2"
_EVERY: Final = 20
"""So many seeds may be lost to a stop."""


class Failure(Frozen):
    """A seed that failed: what does not hold, and the command that shows it again.

    ``faults``: how many are left in the schedule that the command reads, of ``of_faults`` that struck.
    """

    seed: int
    broken: tuple[str, ...]
    again: str
    faults: int
    of_faults: int


class Faults(Frozen):
    """All seeds together; ``steps`` are the requests that were sent, ``cpu_s`` is of all processes.

    ``seeds``: which were asked for, at which ``level``; ``next_seed``: all before it have run.
    """

    format: str = FORMAT
    level: str
    seeds: str
    next_seed: int
    runs: int = 0
    failed: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    faults_injected: dict[str, int] = {}
    ends: dict[str, int] = {}
    failures: tuple[Failure, ...] = ()
    versions: dict[str, str] = {}


class Tally:
    """Counts seeds in their order. ``file``: where the figures so far are kept, None for nowhere."""

    def __init__(self, file: Path | None, level: str, seeds: range, *, go_on: bool) -> None:
        """``go_on``: after the last seed that the file has. Raises: ConfigurationError"""
        self._file = file
        asked = f"{seeds.start}-{seeds.stop - 1}"
        begun = Faults(level=level, seeds=asked, next_seed=seeds.start, versions=_versions())
        self.found = _read(file, begun) if go_on and file is not None and file.exists() else begun
        self.left = range(self.found.next_seed, seeds.stop)

    def add(self, one: Simulated, failure: Failure | None) -> None:
        """The figures so far are in the file whenever a seed fails, and every few seeds."""
        before = self.found
        self.found = before.model_copy(
            update={
                "next_seed": one.seed + 1,
                "runs": before.runs + 1,
                "failed": before.failed + bool(one.failed),
                "steps": before.steps + one.steps,
                "cpu_s": round(before.cpu_s + one.cpu_s, 3),
                "faults_injected": _sum(before.faults_injected, one.injected),
                "ends": _sum(before.ends, Counter(end.split(":")[0] for end in one.ends)),
                "failures": before.failures if failure is None else (*before.failures, failure),
            }
        )
        if failure is not None or self.found.runs % _EVERY == 0:
            self.write()

    def write(self) -> None:
        if self._file is not None:
            rewrite(self._file, self.found.model_dump_json(indent=1))


def _versions() -> dict[str, str]:
    return versions()


def _sum(before: dict[str, int], more: Counter[str]) -> dict[str, int]:
    return dict(sorted((Counter(before) + more).items()))


def _read(file: Path, asked: Faults) -> Faults:
    """Raises: ConfigurationError, for figures of other seeds, another level or other versions"""
    try:
        found = Faults.model_validate_json(read_text(file))
    except ValueError as wrong:
        raise ConfigurationError(f"{file} has no figures of faults to go on with: {wrong}") from None
    for name in ("format", "level", "seeds", "versions"):
        if getattr(found, name) != getattr(asked, name):
            raise ConfigurationError(
                f"{file} has figures of other {name} ({getattr(found, name)}): name another file, or leave out --resume"
            )
    return found
