"""The simulator of faults: runs what a seed draws, or a schedule that is written down, at its level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from harness.faults.drawing import Drawn
from harness.faults.injection import FaultyNetwork
from harness.faults.schedule import Level, Schedule
from harness.faults.servers_alone import ServersAlone
from harness.faults.simulation import Simulated, Simulation
from harness.faults.whole_studies import WholeStudy

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
