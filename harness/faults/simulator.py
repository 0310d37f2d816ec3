"""The simulator of faults: runs what a seed draws, or a schedule that is written down, at its level."""

from __future__ import annotations

import heapq
import itertools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Final

from harness.attack.troubled_study import SITES, Left, Plan, ended, federation_spec, left, study_of
from harness.faults.drawing import PARTIES, Drawn
from harness.faults.promises import SignedOnce
from harness.faults.schedule import SERVERS, Disks, FaultyNetwork, Level, Party, Schedule, Stepped
from harness.faults.servers_alone import ServersAlone
from harness.faults.simulation import MEMORY, STARTED_AGAIN_S, WITHIN_S, Action, Simulated, Simulation
from harness.federation.in_memory_federation import InMemoryFederation
from harness.federation.learners import light_learner
from protocol.errors import MoietyError

PLAN: Final = Plan(dimension=200, within_s=WITHIN_S)


@cache
def fault_free() -> Left:
    """The same study when nothing goes wrong."""
    schedule = Schedule(seed=0, delays_s=0.0, faults=())
    return WholeStudy(schedule, FaultyNetwork(schedule)).left()


class Federation(InMemoryFederation):
    """An agent that an error ends is started again, as by a supervisor of processes."""

    pace = replace(InMemoryFederation.pace, stuck_after_s=7200.0)
    ended_by: list[tuple[str, BaseException]]

    def _died(self, site: str, failure: BaseException) -> None:
        self.ended_by.append((site, failure))


class WholeStudy(Simulation):
    """``run`` lets the study go on until everybody who comes back has an end, or the time is over."""

    def __init__(self, schedule: Schedule, network: FaultyNetwork) -> None:
        self.schedule, self.network = schedule, network
        self.signed = SignedOnce()
        self._coming: list[tuple[float, int, Action]] = []
        self._number = itertools.count()
        self._away: dict[Party, int] = dict.fromkeys(PARTIES, 0)
        self._wait_for = tuple(site for site in SITES if site not in schedule.gone)

    def run(self) -> Simulated:
        expected = fault_free()
        found = self.left()
        twice = (f"signed twice: {one}" for one in sorted(set(self.signed.twice)))
        return self.result(set(found.ends.values()), (*self._failed(found, expected), *twice))

    def left(self) -> Left:
        with (
            tempfile.TemporaryDirectory(prefix="moiety-faults-", dir=MEMORY if MEMORY.is_dir() else None) as folder,
            self.signed.watching(),
            Federation(federation_spec(), Path(folder), light_learner, network=self.network) as self._running,
        ):
            self._running.ended_by = []
            self.off_s = self._running.servers.off_s
            self.disks = Disks({party: self._folder(party) for party in PARTIES})
            with self.disks.watched():
                self._running.hand_in(study_of(self._running, PLAN))
                self._running.start()
                self.foresee()
                self._until_over()
                self._running.stop_agents()
                return left(self._running)

    def _folder(self, party: Party) -> Path:
        if party in SITES:
            return self._running.state(party)
        operator = self._running.parties.roster.message.operator(SERVERS[party])
        return self._running.config(operator.name).parent

    def _failed(self, found: Left, expected: Left) -> Iterator[str]:
        gone = self.schedule.gone
        yield from (f"no end: {site}" for site in SITES if site not in found.ends and site not in gone)
        yield from found.broken
        if self.network.taken_twice:
            yield f"carried out twice: {self.network.taken_twice} requests"
        if self.network.late_taken and not any(isinstance(one, Stepped) for one in self.schedule.faults):
            yield f"carried out late: {self.network.late_taken} requests, long after they were sent"
        there = {site: model for site, model in found.models.items() if site not in gone}
        if found.took_part == expected.took_part and set(there.values()) != set(expected.models.values()):
            yield "another model: the same sites in every sum"

    # --- accidents at their moments ---

    def later(self, at_s: float, action: Action) -> None:
        heapq.heappush(self._coming, (at_s, next(self._number), action))

    def _until_over(self) -> None:
        began_s = self._running.clock.monotonic()
        while True:
            until_s = self._next_s()
            while (left_s := began_s + until_s - self._running.clock.monotonic()) > 0:
                if self._running.comes(self._over, left_s) and self._ended():
                    return
                self._start_ended_agents(self._running.clock.monotonic() - began_s)
                until_s = min(until_s, self._next_s())
            if not self._coming or self._running.clock.monotonic() - began_s >= WITHIN_S:
                return
            heapq.heappop(self._coming)[2]()

    def _next_s(self) -> float:
        return min(self._coming[0][0] if self._coming else WITHIN_S, WITHIN_S)

    def _ended(self) -> bool:
        return ended(self._running, *self._wait_for)

    def _over(self) -> bool:
        return bool(self._running.ended_by) or self._ended()

    def _start_ended_agents(self, now_s: float) -> None:
        while self._running.ended_by:
            site, _ = self._running.ended_by.pop()
            self.network.injected["agent ended by an error"] += 1
            if not self._away[site]:
                self.goes(site)
                self.later(now_s + STARTED_AGAIN_S, partial(self.comes_back, site))

    def goes(self, party: Party) -> None:
        self._away[party] += 1
        if self._away[party] > 1:
            return
        if party in SERVERS:
            self._running.servers.kill(SERVERS[party])
        else:
            self._running.stop_agents(party)

    def comes_back(self, party: Party) -> None:
        self._away[party] -= 1
        if self._away[party]:
            return
        if party not in SERVERS:
            self._running.start(party)
            return
        try:
            self._running.servers.bring_back(SERVERS[party])
        except (MoietyError, OSError):  # a disk that is still full
            self._away[party] += 1
            now_s = self._running.clock.monotonic()
            self.later(now_s + STARTED_AGAIN_S, lambda: self.comes_back(party))


_RUN: Final[dict[Level, Callable[[Schedule, FaultyNetwork], Simulation]]] = {
    Level.STUDIES: WholeStudy,
    Level.SERVERS: ServersAlone,
}


def simulated(seed: int, level: Level = Level.STUDIES) -> Simulated:
    """Run what a seed draws; the result's schedule holds every fault that struck."""
    drawn = Drawn.of(seed, level)
    network = FaultyNetwork(drawn.schedule, drawn.fate)
    found = _RUN[level](drawn.schedule, network).run()
    struck = (*network.found, *drawn.schedule.faults)
    return replace(found, schedule=drawn.schedule.model_copy(update={"faults": struck}))


def replayed(schedule: Schedule) -> Simulated:
    """Run a schedule of faults that is written down."""
    return _RUN[schedule.level](schedule, FaultyNetwork(schedule)).run()
