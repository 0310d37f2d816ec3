"""One whole study under a schedule of accidents, and the promises that do not hold after it."""

from __future__ import annotations

import heapq
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from harness.adversaries.troubled.left import Left, ended, left
from harness.adversaries.troubled.study import SITES, Plan, federation_spec, study_of
from harness.faults.drawing import PARTIES, Drawn
from harness.faults.injection import Disks, FaultyNetwork
from harness.faults.promises import SignedOnce
from harness.faults.schedule import (
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
from harness.faults.simulation import MEMORY, Simulated
from harness.federation.memory.federation import InMemoryFederation
from harness.federation.memory.learners import light_learner
from protocol.errors import ConfigurationError, MoietyError
from protocol.sharing import Side

PLAN: Final = Plan(rounds=2, dimension=200, within_s=6 * 3600.0)


@cache
def fault_free() -> Left:
    """The same study when nothing goes wrong."""
    found, _, _ = _run(Schedule(seed=0, delays_s=0.0, faults=()), None)
    return found


def simulated(seed: int) -> Simulated:
    """Run what a seed draws to the end of its study."""
    drawn = Drawn.of(seed)
    schedule = Schedule(seed=seed, delays_s=drawn.delays_s, faults=drawn.timed)
    network = FaultyNetwork(schedule, drawn.fate)
    found = replayed(schedule, network)
    return replace(found, schedule=schedule.model_copy(update={"faults": (*network.found, *drawn.timed)}))


def replayed(schedule: Schedule, network: FaultyNetwork | None = None) -> Simulated:
    """Run a schedule of faults that is written down."""
    network = network or FaultyNetwork(schedule)
    expected = fault_free()
    found, disks, signed = _run(schedule, network)
    if disks.refused:
        network.injected["write refused"] += disks.refused
    twice = (f"signed twice: {one}" for one in sorted(set(signed.twice)))
    failed = (*_failed(found, expected, network, schedule), *twice)
    ends = tuple(sorted(set(found.ends.values())))
    return Simulated(schedule.seed, network.steps, network.injected, ends, schedule, failed)


def _run(schedule: Schedule, network: FaultyNetwork | None) -> tuple[Left, Disks, SignedOnce]:
    signed, place = SignedOnce(), MEMORY if MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="moiety-faults-", dir=place) as folder,
        signed.watching(),
        Federation(federation_spec(), Path(folder), light_learner, network=network) as running,
    ):
        disks = Disks({party: _folder(running, party) for party in PARTIES})
        with disks.watched():
            running.hand_in(study_of(running, PLAN))
            running.start()
            Timeline(running, network or FaultyNetwork(schedule), disks, schedule).run(PLAN.within_s)
            running.stop_agents()
            return left(running), disks, signed


def _folder(running: Federation, party: str) -> Path:
    if party in SITES:
        return running.state(party)
    side = Side(party.removeprefix("server "))
    return running.config(running.parties.roster.message.operator(side).name).parent


def _failed(found: Left, expected: Left, network: FaultyNetwork, schedule: Schedule) -> Iterator[str]:
    yield from (f"no end: {site}" for site in SITES if site not in found.ends and site not in schedule.gone)
    yield from found.broken
    if network.taken_twice:
        yield f"carried out twice: {network.taken_twice} requests"
    if network.late_taken and not any(isinstance(one, Stepped) for one in schedule.faults):
        yield f"carried out late: {network.late_taken} requests, long after they were sent"
    there = {site: model for site, model in found.models.items() if site not in schedule.gone}
    if found.took_part == expected.took_part and set(there.values()) != set(expected.models.values()):
        yield "another model: the same sites in every sum"


_SERVERS: Final = {f"server {side.value}": side for side in Side}
_STARTED_AGAIN_S: Final = 5.0
"""As whoever watches over processes waits before it starts one again that could not start."""
Action = Callable[[], None]


class Federation(InMemoryFederation):
    """An agent that an error ends is started again, as by whoever watches over processes."""

    settings: Mapping[str, object] = {**InMemoryFederation.settings, "stuck_timeout_s": 7200.0}
    ended_by: list[tuple[str, BaseException]]

    def _died(self, site: str, failure: BaseException) -> None:
        self.ended_by.append((site, failure))


class Timeline:
    """``run`` lets the study go on until everybody who comes back has an end, or the time is over."""

    def __init__(self, running: Federation, network: FaultyNetwork, disks: Disks, schedule: Schedule) -> None:
        self._running, self._network, self._disks = running, network, disks
        self._coming: list[tuple[float, int, Action]] = []
        self._number = itertools.count()
        self._away: dict[Party, int] = dict.fromkeys((*SITES, *_SERVERS), 0)
        self._wait_for = tuple(site for site in SITES if site not in schedule.gone)
        running.ended_by = []
        for one in schedule.timed:
            self._foresee(one)

    def run(self, within_s: float) -> bool:
        """Whether all of them have an end."""
        began_s = self._running.clock.monotonic()
        while True:
            next_s = self._coming[0][0] if self._coming else within_s
            until_s = min(next_s, within_s)
            while (left_s := began_s + until_s - self._running.clock.monotonic()) > 0:
                if self._running.comes(self._over, left_s) and self._ended():
                    return True
                self._start_ended_agents(self._running.clock.monotonic() - began_s)
                until_s = min(until_s, self._coming[0][0] if self._coming else within_s)
            if not self._coming or self._running.clock.monotonic() - began_s >= within_s:
                return self._ended()
            heapq.heappop(self._coming)[2]()

    def _ended(self) -> bool:
        return ended(self._running, *self._wait_for)

    def _over(self) -> bool:
        return bool(self._running.ended_by) or self._ended()

    def _start_ended_agents(self, now_s: float) -> None:
        while self._running.ended_by:
            site, _ = self._running.ended_by.pop()
            self._network.injected["agent ended by an error"] += 1
            if not self._away[site]:
                self._goes(site)
                self._at(now_s + _STARTED_AGAIN_S, lambda site=site: self._comes_back(site))  # type: ignore[misc]

    def _at(self, at_s: float, action: Action) -> None:
        heapq.heappush(self._coming, (at_s, next(self._number), action))

    def _foresee(self, fault: Timed) -> None:
        begins, ends = self._actions(fault)
        self._at(fault.at_s, lambda: self._noted(fault, begins))
        if fault.for_s is not None:
            self._at(fault.at_s + fault.for_s, ends)

    def _noted(self, fault: Timed, begins: Action) -> None:
        self._network.injected[_words(fault)] += 1
        begins()

    def _actions(self, fault: Timed) -> tuple[Action, Action]:
        match fault:
            case Away(who=who):
                return lambda: self._all(self._goes, who), lambda: self._all(self._comes_back, who)
            case Migrated(who=who):
                return lambda: self._goes(who), lambda: self._comes_back(who)
            case Parted(sender=sender, to=to):
                return lambda: self._shut(sender, to, 1), lambda: self._shut(sender, to, -1)
            case Full(who=party):
                return lambda: self._fill(party, 1), lambda: self._fill(party, -1)
            case Stepped(who=party, by_s=by_s):
                return lambda: self._step(party, by_s), lambda: self._step(party, -by_s)
            case RosterChanged():
                raise ConfigurationError("whole studies run under one roster: leave changes of it out of the schedule")

    def _all(self, does: Callable[[Party], None], who: tuple[Party, ...]) -> None:
        for party in who:
            does(party)

    def _goes(self, party: Party) -> None:
        self._away[party] += 1
        if self._away[party] > 1:
            return
        if party in _SERVERS:
            self._running.servers.kill(_SERVERS[party])
        else:
            self._running.stop_agents(party)

    def _comes_back(self, party: Party) -> None:
        self._away[party] -= 1
        if self._away[party]:
            return
        if party not in _SERVERS:
            self._running.start(party)
            return
        try:
            self._running.servers.bring_back(_SERVERS[party])
        except (MoietyError, OSError):  # a disk that is still full
            self._away[party] += 1
            now_s = self._running.clock.monotonic()
            self._at(now_s + _STARTED_AGAIN_S, lambda: self._comes_back(party))

    def _shut(self, sender: Party, to: Side, by: int) -> None:
        self._network.parted[sender, to] += by

    def _fill(self, party: Party, by: int) -> None:
        self._disks.full[party] += by

    def _step(self, party: Party, by_s: float) -> None:
        self._running.servers.off_s[party] += by_s  # type: ignore[assignment]  # seconds are counted too


def _words(fault: Timed) -> str:
    match fault:
        case Away(who=who, for_s=for_s):
            several = "of several at once" if len(who) > 1 else "of a server" if who[0] in _SERVERS else "of an agent"
            return f"{'loss' if for_s is None else 'restart'} {several}"
        case Stepped():
            return "clock stepped"
        case _:
            return fault.fault
