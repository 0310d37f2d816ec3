"""One study under a schedule of accidents, and what of the promises does not hold after it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Final

from harness.adversaries.troubled.left import Left, ended, left
from harness.adversaries.troubled.networks import Troubled
from harness.adversaries.troubled.study import SITES, Plan, federation, study_of
from harness.faults.schedule import Restart, Schedule
from harness.federation.memory.federation import InMemoryFederation
from protocol.sharing import Side

PLAN: Final = Plan(rounds=2, within_s=4 * 3600.0)


@dataclass(frozen=True)
class Simulated:
    """What became of one seed. ``steps`` are requests that were sent; ``failed`` says which promises do not hold."""

    seed: int
    steps: int
    injected: Counter[str]
    ends: tuple[str, ...]
    failed: tuple[str, ...] = field(default=())


@cache
def fault_free() -> Left:
    """The same study when nothing goes wrong."""
    with tempfile.TemporaryDirectory(prefix="moiety-faults-") as folder, federation(Path(folder), None) as running:
        running.hand_in(study_of(running, PLAN))
        running.start()
        running.until("the end of a fault-free study", lambda: ended(running), PLAN.within_s)
        running.stop_agents()
        return left(running)


def simulated(seed: int) -> Simulated:
    """Run the seed's schedule to the end of its study."""
    schedule = Schedule.drawn(seed)
    network = Troubled(schedule.fate, seed)
    expected = fault_free()
    with tempfile.TemporaryDirectory(prefix="moiety-faults-") as folder, federation(Path(folder), network) as running:
        running.hand_in(study_of(running, PLAN))
        running.start()
        began_s = running.clock.monotonic()
        for restart in schedule.restarts:
            _pass(running, began_s + restart.at_s - running.clock.monotonic())
            _restart(running, restart, network)
        running.comes(lambda: ended(running), PLAN.within_s)
        running.stop_agents()
        found = left(running)
    failed = tuple(_failed(found, expected, network))
    return Simulated(seed, network.steps, network.injected, tuple(sorted(set(found.ends.values()))), failed)


def _pass(running: InMemoryFederation, seconds: float) -> None:
    if seconds > 0:
        running.comes(partial(ended, running), seconds)


def _restart(running: InMemoryFederation, restart: Restart, network: Troubled) -> None:
    if isinstance(restart.who, Side):
        network.injected[f"restart of server {restart.who.value}"] += 1
        running.servers.kill(restart.who)
        _pass(running, restart.away_s)
        running.servers.bring_back(restart.who)
        return
    network.injected["restart of an agent"] += 1
    running.stop_agents(restart.who)
    _pass(running, restart.away_s)
    running.start(restart.who)


def _failed(found: Left, expected: Left, network: Troubled) -> Iterator[str]:
    yield from (f"{site}: no end" for site in SITES if site not in found.ends)
    yield from found.broken
    if network.taken_twice:
        yield f"{network.taken_twice} requests carried out twice"
    if network.late_taken:
        yield f"{network.late_taken} requests carried out long after they were sent"
    if found.took_part == expected.took_part and set(found.models.values()) != set(expected.models.values()):
        yield "the same sites in every sum, and another model"
