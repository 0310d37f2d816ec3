"""Tables and plots put into pages whose text is written by hand: docs/results."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pandas as pd

from harness.papers.plots import PLOTS, Series
from harness.papers.scores import Table
from host.output_files import rewrite
from protocol.errors import ConfigurationError
from protocol.text import printable

_TABLE: Final = re.compile(r"<!-- table: (\w+) -->\n(?:(?!<!-- table:).)*?<!-- end -->", re.DOTALL)
_BREAKS_A_TABLE: Final = re.compile(r"[\r\n|]|<!--")
_PLOT: Final = re.compile(r"!\[[^\]]*\]\((\w+)\.svg\)")


def write_data(folder: Path, name: str, content: Table | Series) -> bool:
    """Write a table, or the series of ``plots/NAME``. Returns whether the file is another one than before."""
    path = folder / f"{name}.csv"
    heads = [PLOTS[path.stem].heads] if name.startswith("plots/") else []
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*heads, *(map(_cell, row) for row in content)])
    if path.exists() and path.read_text(encoding="utf-8") == text.getvalue():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    rewrite(path, text.getvalue())
    return True


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return "" if value is None else str(value)


def markdown(path: Path) -> str:
    """A table's file as Markdown; the first column is text, the others are numbers.

    Raises: ConfigurationError for a file that is missing, no CSV, or would break the page
    """
    if not path.is_file():
        raise ConfigurationError(f"{path}: there is no such table; 'moiety results' makes it from its runs")
    try:
        head, *rows = pd.read_csv(path, header=None, dtype=str, keep_default_na=False).to_numpy().tolist()
    except ValueError as wrong:
        raise ConfigurationError(f"{path}: no table: {' '.join(str(wrong).split())}") from None
    for cell in (cell for row in (head, *rows) for cell in row):
        if _BREAKS_A_TABLE.search(cell):
            raise ConfigurationError(
                f"{path}: the cell {printable(cell)!r} would break the table in the page: change it"
            )
    lines = [_line(head), "|---|" + "---:|" * (len(head) - 1), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def render(page: Path, data: Path) -> None:
    """Fill the page's tables and draw its plots from the files below ``data``. Raises: ConfigurationError"""
    if not page.is_file():
        raise ConfigurationError(f"{page}: there is no such page; its text is written by hand, in docs/results")
    text = page.read_text(encoding="utf-8")
    filled = _TABLE.sub(
        lambda found: f"<!-- table: {found[1]} -->\n\n{markdown(data / f'{found[1]}.csv')}\n\n<!-- end -->", text
    )
    for name in _PLOT.findall(text):
        if name in PLOTS:
            rewrite(page.with_name(f"{name}.svg"), PLOTS[name].svg(data / "plots" / f"{name}.csv"))
    rewrite(page, filled)
