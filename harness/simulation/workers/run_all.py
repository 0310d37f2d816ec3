"""Every run of a case with its line, wherever it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harness.simulation.run_one import PlannedRun
from harness.simulation.runs import RunLine
from harness.simulation.workers.cluster import RayCluster
from harness.simulation.workers.on_ray import run_on_ray
from harness.simulation.workers.processes import run_in_processes
from harness.simulation.workers.told import RoundDone


def run_all(
    planned: Sequence[PlannedRun], where: int | RayCluster, show: Callable[[RoundDone], None]
) -> Iterator[tuple[PlannedRun, RunLine]]:
    """Every run with its line, as they finish, to the same bits ``where``-ever; ``show`` is told of every round.

    where   a number of processes of this machine, or a Ray cluster

    Raises: whatever a run raises, after the runs that were under way have kept their last round
    """
    if isinstance(where, RayCluster):
        return run_on_ray(planned, where, show)
    return run_in_processes(planned, where, show)
