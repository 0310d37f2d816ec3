"""How many rounds of what are run, and what they took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from harness.bench.against.whole.gauge import Between, Reading, between
from harness.bench.against.whole.running import Marks
from protocol.errors import ProtocolViolation

STEP: Final = 1e-3
"""Client number i, from 1, adds i times this to every parameter in every round."""
_LARGEST_ERROR: Final = 1e-4
_WITHIN_S_PER_ROUND: Final = 300.0


@dataclass(frozen=True)
class Asked:
    """``rounds`` are measured, after one that warms everything up."""

    parameters: int
    clients: int
    rounds: int

    @property
    def all_rounds(self) -> int:
        return 1 + self.rounds

    @property
    def within_s(self) -> float:
        """How long a peer may take for everything."""
        return _WITHIN_S_PER_ROUND * (1 + self.all_rounds)


@dataclass(frozen=True)
class Taken:
    """Per round."""

    measured: Between
    rounds: int

    @classmethod
    def of(cls, readings: Sequence[Reading], marks: Marks, asked: Asked) -> Self:
        """Of the rounds after the first. Raises: ProtocolViolation, when the average is wrong"""
        first, last = 2, 2 + asked.rounds
        _require_average(marks, asked)
        return cls(between(readings, marks.rounds[first], marks.rounds[last]), asked.rounds)


def _require_average(marks: Marks, asked: Asked) -> None:
    """What was noted last is the model after some whole number of rounds, everywhere the same."""
    if marks.found is None:
        raise ProtocolViolation("the peer has noted no model")
    least, most = marks.found
    step = STEP * (1 + asked.clients) / 2
    whole = round(most / step)
    if not (whole >= asked.rounds and math.isclose(least, most, abs_tol=_LARGEST_ERROR)) or not math.isclose(
        most, whole * step, abs_tol=_LARGEST_ERROR
    ):
        raise ProtocolViolation(f"the peer's model lies between {least:g} and {most:g}, not at a multiple of {step:g}")
