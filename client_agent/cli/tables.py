"""Options of commands, and tables and lines for a terminal: every cell is shown as it is written, whoever wrote it.

rich reads "[red]" or "[/]" in a text as markup, and a wrong one ends the program; ``:smile:`` becomes a picture. Names
and reasons of other parties must do neither, so nothing here is markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.measure import Measurement, measure_renderables
from rich.table import Table
from rich.text import Text

from protocol.text import printable

if TYPE_CHECKING:
    from client_agent.settings import AgentSettings

_PIPED_WIDTH: Final = 100_000


def plain(text: str) -> Text:
    """A text as it is written, of printable characters."""
    return Text(printable(text))


def table(*headings: str, title: str | None = None, caption: str | None = None) -> Table:
    """An empty table; fill it with ``add_row``."""
    shown = [None if text is None else plain(text) for text in (title, caption)]
    return Table(*headings, title=shown[0], caption=shown[1])


def add_row(into: Table, *cells: str, style: str | None = None) -> None:
    into.add_row(*map(plain, cells), style=style)


class WholeNames(Console):
    """A console whose tables have every word whole: wide in a pipe, with fewer columns on a narrow terminal."""

    def print(self, *objects: Any, **how: Any) -> None:  # noqa: ANN401  (as rich declares it)
        left_out = [name for one in objects if isinstance(one, Table) for name in self._fit(one)]
        super().print(*objects, **how)
        if left_out:
            super().print(f"no room for: {', '.join(left_out)}; widen the terminal, or send this into a file")

    def _fit(self, shown: Table) -> list[str]:
        """Take columns off at the right until each word of the others has room; returns what they are called."""
        left_out: list[str] = []
        unbounded = self.options.update_width(_PIPED_WIDTH)
        while (room := self.width - Measurement.get(self, unbounded, shown).minimum) < 0 and len(shown.columns) > 1:
            left_out.insert(0, str(shown.columns.pop().header))
        spans = [(measure_renderables(self, unbounded, [one.header, *one.cells]), one) for one in shown.columns]
        spans.sort(key=lambda pair: pair[0].span)
        for place, (words, column) in enumerate(spans):  # rich would shrink the widest first, below its longest word
            more = max(0, min(words.span, room // (len(spans) - place)))
            column.width, column.overflow = words.minimum + more, "fold"
            room -= more
        return left_out


def console(*, stderr: bool = False) -> Console:
    """Standard output or error; a line given to it is no markup either."""
    made = partial(WholeNames, stderr=stderr, markup=False, emoji=False, highlight=False)
    found = made()
    return found if found.is_terminal else made(width=_PIPED_WIDTH)


ConfigOption = Annotated[Path, typer.Option("--config", help="The agent's settings file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="JSON lines on standard output.")]
StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="The study's name.")]


def settings_of(config: Path) -> AgentSettings:
    """The agent's settings in a file. Raises: ConfigurationError"""
    from client_agent.settings import load_settings  # heavy, and no help needs it

    return load_settings(config)


def json_line(values: Mapping[str, object]) -> None:
    """To standard output."""
    sys.stdout.write(json.dumps(values) + "\n")


def answer(values: Mapping[str, object], text: str, *, json_output: bool) -> None:
    """To standard output: JSON for a program, else the text."""
    sys.stdout.write((json.dumps(values) if json_output else text) + "\n")
