"""The comparison in one table: every variant's mean and worst site, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

from pydantic import TypeAdapter
from rich.table import Table

from harness.personal.records import PersonalLine
from harness.personal.scores import Scores
from harness.simulation.drawing.spread import Spread

# Mean and worst F1 over the 30 people, Roschewitz et al. 2021.
PUBLISHED: Final = {
    "ifedavg": (0.994, 0.950),
    "apfl": (0.992, 0.972),
    "fedavg": (0.967, 0.909),
    "local": (0.993, 0.974),
    "centralised": (0.988, 0.955),
}


@dataclass(frozen=True)
class VariantSummary:
    """One variant: F1 averaged over sites and at the worst site, and accuracy averaged over sites, after the end."""

    variant: str
    seeds: int
    rounds: int
    mean_f1: Spread
    worst_f1: Spread
    mean_accuracy: Spread
    clipped_share: float


_SUMMARIES: Final = TypeAdapter(tuple[VariantSummary, ...])


def summaries(lines: Sequence[PersonalLine]) -> tuple[VariantSummary, ...]:
    """One per variant, in the order of the lines."""
    names = dict.fromkeys(line.variant for line in lines)
    return tuple(_summary(name, [line for line in lines if line.variant == name]) for name in names)


def summary_json(lines: Sequence[PersonalLine]) -> str:
    """The summaries as one JSON list."""
    return _SUMMARIES.dump_json(summaries(lines)).decode()


def summary_table(lines: Sequence[PersonalLine]) -> Table:
    """For a terminal, the published numbers beside."""
    table = Table("variant", "seeds", "rounds", "mean F1", "worst F1", "accuracy", "published mean / worst F1")
    for one in summaries(lines):
        published = PUBLISHED.get(one.variant)
        beside = f"{published[0]:.3f} / {published[1]:.3f}" if published else ""
        table.add_row(
            one.variant,
            str(one.seeds),
            str(one.rounds),
            str(one.mean_f1),
            str(one.worst_f1),
            str(one.mean_accuracy),
            beside,
        )
    return table


def _summary(name: str, lines: Sequence[PersonalLine]) -> VariantSummary:
    def spread(score: Callable[[Scores], float]) -> Spread:
        return Spread.of([score(line.last) for line in lines])

    return VariantSummary(
        name,
        len(lines),
        lines[0].rounds,
        spread(lambda scores: scores.mean_f1),
        spread(lambda scores: scores.worst_f1),
        spread(lambda scores: scores.mean_accuracy),
        mean(line.clipped_share for line in lines),
    )
