"""What studies of falsified rounds come to over seeds: by whichever of the server's plans tells it more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from harness.adversaries.falsifying.leak_line import LeakLine
from harness.adversaries.falsifying.questions import Question


@dataclass(frozen=True)
class Asked:
    """What is asked, and against what: see :class:`LeakLine`."""

    question: Question
    clause: bool = True
    canaries: float = 0.0
    rounds: int = 30

    def of(self, line: LeakLine) -> bool:
        return (line.question, line.clause, line.canaries, line.rounds) == (
            self.question,
            self.clause,
            self.canaries,
            self.rounds,
        )


@dataclass(frozen=True)
class Leaked:
    """Means over seeds: bits with their standard deviation, rounds asked in, failed checks; by which plan.

    ``caught``: the number of studies in which the server was.
    """

    failures: int
    seeds: int
    bits: float
    deviation: float
    asked: float
    failed: float
    caught: int

    def __str__(self) -> str:
        return f"{self.bits:.1f} ± {self.deviation:.1f}"


def leaked(lines: Iterable[LeakLine], asked: Asked, failures: int | None = None) -> Leaked | None:
    """By the plan with most bits in the mean, or by one plan alone; None without lines."""
    plans: dict[int, list[LeakLine]] = {}
    for line in lines:
        if asked.of(line) and failures in (None, line.failures):
            plans.setdefault(line.failures, []).append(line)
    return max((_over(found) for found in plans.values()), key=lambda one: one.bits, default=None)


def _over(lines: Sequence[LeakLine]) -> Leaked:
    bits = [line.bits for line in lines]
    return Leaked(
        failures=lines[0].failures,
        seeds=len(lines),
        bits=mean(bits),
        deviation=stdev(bits) if len(bits) > 1 else 0.0,
        asked=mean(line.asked for line in lines),
        failed=mean(line.failed for line in lines),
        caught=sum(line.caught is not None for line in lines),
    )
