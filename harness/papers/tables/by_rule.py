"""The table of a case in which every site is the requester in turn, with a row per rule: for many rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from client_agent.scoring.score import MetricName
from harness.papers.page import Page
from harness.papers.tables.by_requester import Lines, over_requesters, requesters, spread_of
from harness.simulate.charts import Spread, of_variant


@dataclass(frozen=True)
class RuleRow:
    """A rule, what stands beside it, and a cell per requester and one for their mean; quoted cells are text."""

    title: str
    beside: tuple[str, ...]
    cells: tuple[Spread | str | None, ...]


def rules_table(
    page: Page,
    names: Sequence[str],
    rows: Sequence[RuleRow],
    quoted: Sequence[RuleRow] = (),
    beside: Sequence[str] = (),
    smallest: bool = False,
) -> None:
    """Our rows, the best of every column's complete cells in bold, then quoted ones, which have no mean.

    ``names`` are the requesters, ``smallest``: the best is the smallest.
    """
    width = len(names) + 1
    columns = [[cell for row in rows if isinstance(cell := row.cells[place], Spread)] for place in range(width)]
    best = [_best(cells, smallest) for cells in columns]
    shown = [
        (row.title, *row.beside, *(_shown(cell, top) for cell, top in zip(row.cells, best, strict=True)))
        for row in rows
    ]
    blank = [(row.title, *row.beside, *(str(cell) for cell in row.cells), "") for row in quoted]
    page.table(("rule", *beside, *names, "mean"), [*shown, *blank])


def metric_table(
    page: Page,
    lines: Lines,
    variants: Mapping[str, str],
    metric: MetricName,
    quoted: Sequence[RuleRow] = (),
) -> None:
    """A metric of the variants that have run, after the last round."""
    names = requesters(lines)
    rows = [
        RuleRow(title, (), cells_of(lines, variant, names, metric))
        for variant, title in variants.items()
        if of_variant(lines, variant)
    ]
    rules_table(page, names, rows, quoted, smallest=metric.smaller_is_better)


def cells_of(
    lines: Lines, variant: str, names: Sequence[str], metric: MetricName = MetricName.ACCURACY
) -> tuple[Spread | None, ...]:
    """A row's cells: every requester's, and their mean."""
    each = (spread_of(lines, variant, name, metric) for name in names)
    return (*each, over_requesters(lines, variant, metric))


def _best(cells: Sequence[Spread], smallest: bool) -> float | None:
    """Among those over the most runs."""
    most = max((cell.count for cell in cells), default=0)
    means = [cell.mean for cell in cells if cell.count == most]
    return (min if smallest else max)(means, default=None)


def _shown(cell: Spread | str | None, best: float | None) -> str:
    if cell is None:
        return "none"
    return f"**{cell}**" if isinstance(cell, Spread) and cell.mean == best else str(cell)
