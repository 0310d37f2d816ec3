"""The privacy page's part about what a bound costs: accuracy against epsilon of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.papers.page import Page
from harness.papers.tables.by_requester import over_requesters
from harness.simulation.runs import RunLine
from harness.simulation.store import Results

EPSILONS: Final = ("none", "clipped", "8", "1")
_INTRODUCTION: Final = (
    "No attack above is a bound. Differential privacy is one, for a record by noise that every site adds; it is off "
    "unless a study asks for it. Accuracy of FedAvg on the requesters' own test parts, mean ± standard error over "
    "seeds. *None* neither clips nor adds noise, *clipped* clips alone. All rules, sizes and settings are on [what "
    "noise costs](differential_privacy.md)."
)
_READ: Final = "A record is hidden at little cost where sites have thousands of records or the model is small."


@dataclass(frozen=True)
class Row:
    """A case, and its data as they are called."""

    case: str
    data: str


ROWS: Final = (
    Row("noise_heart", "heart disease, four hospitals"),
    Row("noise_mnist", "MNIST, ten sites"),
)


def recorded(runs: Path) -> dict[str, tuple[RunLine, ...]]:
    """All lines of these cases that are there; they are made for the page on noise."""
    return {row.case: Results(runs / row.case).lines() for row in ROWS}


def write(page: Page, runs: Mapping[str, Sequence[RunLine]]) -> None:
    """A table; what has not run is named."""
    page.heading("What does a bound cost?")
    page.text(_INTRODUCTION)
    done = [row for row in ROWS if runs.get(row.case)]
    if len(done) < len(ROWS):
        missing = "; ".join(row.data for row in ROWS if row not in done)
        page.text(f"**Not run yet** (`moiety results --only differential_privacy`): {missing}.")
    if done:
        heads = ("none", "clipped", *(f"epsilon {epsilon}" for epsilon in EPSILONS[2:]))
        rows = [(row.data, *(_cell(runs[row.case], epsilon) for epsilon in EPSILONS)) for row in done]
        page.table(("data", *heads), rows)
    if len(done) == len(ROWS):
        page.text(_READ)


def _cell(lines: Sequence[RunLine], epsilon: str) -> str:
    spread = over_requesters(lines, "fedavg" if epsilon == "none" else f"fedavg_{epsilon}")
    return "-" if spread is None else str(spread)
