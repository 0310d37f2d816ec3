"""One study under a schedule of accidents, and what of the promises does not hold after it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final

from harness.adversaries.troubled_study import SITES, Left, Plan, federation_spec, left, study_of
from harness.faults.disks import Disks
from harness.faults.drawing import PARTIES, Drawn
from harness.faults.network import FaultyNetwork
from harness.faults.schedule import Schedule, Stepped
from harness.faults.signed_once import SignedOnce
from harness.faults.timeline import Federation, Timeline
from harness.federation.memory.learners import light_learner
from protocol.sharing import Side

PLAN: Final = Plan(rounds=2, dimension=200, within_s=6 * 3600.0)
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
