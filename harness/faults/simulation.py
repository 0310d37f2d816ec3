"""One study under a schedule of faults: what every fault does to the parties, and the result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from harness.faults.injection import Disks, FaultyNetwork
from harness.faults.schedule import (
    SERVERS,
    Away,
    Full,
    Migrated,
    Parted,
    Party,
    RosterChanged,
    Schedule,
    Stepped,
    Timed,
)

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
        """The names of those that do not hold."""
        return frozenset(one.split(":")[0] for one in self.failed)


class Simulation(ABC):
    """Faults strike at their moments on the virtual clock. Subclasses run whole studies, or the servers alone."""

    schedule: Schedule
    network: FaultyNetwork
    disks: Disks
    off_s: Counter[Party]
    """By how much each party's clock is off."""

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

    def migrate(self, server: Party) -> None:
        """The server's next start finds a database of the schema before."""
        raise AssertionError("a schedule of whole studies has no such fault")

    def change_roster(self, change: RosterChanged) -> None:
        raise AssertionError("a schedule of whole studies has no such fault")

    def follow_roster(self, change: RosterChanged) -> None:
        """The other server gets the roster, too."""
        raise AssertionError("a schedule of whole studies has no such fault")

    def foresee(self) -> None:
        """Plan every accident of the schedule."""
        for fault in self.schedule.timed:
            begins, ends = self._actions(fault)
            self.later(fault.at_s, self._counted(fault, begins))
            if fault.for_s is not None:
                self.later(fault.at_s + fault.for_s, ends)

    def result(self, ends: set[str], failed: tuple[str, ...]) -> Simulated:
        if self.disks.refused:
            self.network.injected["write refused"] += self.disks.refused
        network = self.network
        return Simulated(
            self.schedule.seed, network.steps, network.injected, tuple(sorted(ends)), self.schedule, failed
        )

    def _counted(self, fault: Timed, begins: Action) -> Action:
        def begin() -> None:
            self.network.injected[_words(fault)] += 1
            begins()

        return begin

    def _actions(self, fault: Timed) -> tuple[Action, Action]:
        match fault:
            case Away(who=who):
                return lambda: _each(self.goes, who), lambda: _each(self.comes_back, who)
            case Migrated(who=who):
                return lambda: self.goes(who), lambda: _each_of((self.migrate, self.comes_back), who)
            case Parted(sender=sender, to=to):
                return _counting(self.network.parted, (sender, to), 1)
            case Full(who=who):
                return _counting(self.disks.full, who, 1)
            case Stepped(who=who, by_s=by_s):
                return _counting(self.off_s, who, by_s)
            case RosterChanged():
                return lambda: self.change_roster(fault), lambda: self.follow_roster(fault)


def _each(does: Callable[[Party], None], who: tuple[Party, ...]) -> None:
    for party in who:
        does(party)


def _each_of(actions: tuple[Callable[[Party], None], ...], who: Party) -> None:
    for does in actions:
        does(who)


def _counting(counter: Counter[Any], key: object, by: float) -> tuple[Action, Action]:
    """Add, and take back."""

    def add(amount: float) -> None:
        counter[key] += amount  # type: ignore[assignment]  # seconds are counted too

    return lambda: add(by), lambda: add(-by)


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
