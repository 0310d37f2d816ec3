"""Tables and lines for a terminal: every cell is shown as it is written, whoever wrote it.

rich reads "[red]" or "[/]" in a text as markup, and a wrong one ends the program; ``:smile:`` becomes a picture. Names
and reasons of other parties must do neither, so nothing here is markup.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from protocol.printable import printable


def plain(text: str) -> Text:
    """A text as it is written, of printable characters."""
    return Text(printable(text))


def table(*headings: str, title: str | None = None, caption: str | None = None) -> Table:
    """An empty table; fill it with ``add_row``."""
    shown = [None if text is None else plain(text) for text in (title, caption)]
    return Table(*headings, title=shown[0], caption=shown[1])


def add_row(into: Table, *cells: str, style: str | None = None) -> None:
    into.add_row(*map(plain, cells), style=style)


def console(*, width: int | None = None) -> Console:
    """Standard output; a line given to it is no markup either."""
    return Console(markup=False, emoji=False, highlight=False, width=width)
