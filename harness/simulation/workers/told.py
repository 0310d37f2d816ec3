"""What whoever does a run tells of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.simulation.run_one import PlannedRun
from harness.simulation.runs import RunKey


@dataclass(frozen=True)
class RoundDone:
    """So many rounds of a run are done."""

    key: RunKey
    rounds: int


def teller(planned: PlannedRun, tell: Callable[[RoundDone], None]) -> Callable[[int], None]:
    """What a run calls with the number of its rounds that are done."""

    def on_round(rounds: int) -> None:
        tell(RoundDone(planned.key, rounds))

    return on_round
