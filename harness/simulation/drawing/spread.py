"""Mean and standard error over seeds, and how a table shows them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from harness.simulation.runs import RunLine, Values


@dataclass(frozen=True)
class Spread:
    """``error`` is the standard error of the mean, None for one value."""

    mean: float
    error: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """NaN is kept: a run that failed shows. Raises: ValueError for no value"""
        found = list(values)
        usable = not any(math.isnan(value) for value in found)
        error = stdev(found) / math.sqrt(len(found)) if usable and len(found) > 1 else None
        return cls(mean(found), error, len(found))

    @property
    def clearly_positive(self) -> bool:
        """More than two standard errors above nothing."""
        return self.error is not None and self.mean > 2 * self.error

    @property
    def clearly_negative(self) -> bool:
        """More than two standard errors below nothing."""
        return self.error is not None and self.mean < -2 * self.error

    def __str__(self) -> str:
        """.783 ± .004"""
        if math.isnan(self.mean):
            return "failed"
        return number(self.mean) if self.error is None else f"{number(self.mean, 3)} ± {number(self.error, 3)}"


def number(value: float, digits: int | None = None) -> str:
    """No zero before the point, as the papers print accuracies; three digits after it, four above .99."""
    digits = digits or (4 if 0.99 <= value < 1 else 3)
    return f"{value:.{digits}f}".replace("0.", ".", 1) if 0 <= value < 1 else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Curve:
    """Mean and standard error over runs, one value per round."""

    label: str
    means: tuple[float, ...]
    errors: tuple[float, ...]


def curve(label: str, runs: Sequence[Values]) -> Curve:
    """Rounds that a run did not reach, or without a number, are left out of that round's mean."""
    length = max((len(run) for run in runs), default=0)
    means, errors = [], []
    for place in range(length):
        values = [value for run in runs if place < len(run) and (value := run[place]) is not None]
        means.append(mean(values) if values else math.nan)
        errors.append(stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0)
    return Curve(label, tuple(means), tuple(errors))


def of_variant(lines: Sequence[RunLine], variant: str, requester: str | None = None) -> tuple[RunLine, ...]:
    """The runs of one variant, of one requester where it is given, in the order of their seeds."""
    found = (line for line in lines if line.variant == variant and requester in (None, line.requester))
    return tuple(sorted(found, key=lambda line: (line.requester, line.seed)))
