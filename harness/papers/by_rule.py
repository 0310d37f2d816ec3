"""The table of a case in which every site is the requester in turn, with a row a rule: for many rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.papers.page import Page
from harness.simulation.drawing.spread import Spread


@dataclass(frozen=True)
class RuleRow:
    """A rule, its learning rate, and a cell a requester and one for their mean; quoted cells are text."""

    title: str
    rate: str
    cells: tuple[Spread | str | None, ...]


def rules_table(page: Page, requesters: Sequence[str], rows: Sequence[RuleRow], quoted: Sequence[RuleRow] = ()) -> None:
    """Our rows, the best of every column's complete cells in bold, then quoted ones, which have no mean."""
    width = len(requesters) + 1
    best = [_best([cell for row in rows if isinstance(cell := row.cells[place], Spread)]) for place in range(width)]
    shown = [
        (row.title, row.rate, *(_shown(cell, top) for cell, top in zip(row.cells, best, strict=True))) for row in rows
    ]
    blank = [(row.title, row.rate, *(str(cell) for cell in row.cells), "") for row in quoted]
    page.table(("rule", "rate", *requesters, "mean"), [*shown, *blank])


def _best(cells: Sequence[Spread]) -> float | None:
    """Among those over the most runs."""
    most = max((cell.count for cell in cells), default=0)
    return max((cell.mean for cell in cells if cell.count == most), default=None)


def _shown(cell: Spread | str | None, best: float | None) -> str:
    if cell is None:
        return "not run"
    return f"**{cell}**" if isinstance(cell, Spread) and cell.mean == best else str(cell)
