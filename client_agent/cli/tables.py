"""Options of commands, and tables and lines for a terminal: every cell is shown as it is written, whoever wrote it.

rich reads "[red]" or "[/]" in a text as markup, and a wrong one ends the program; ``:smile:`` becomes a picture. Names
and reasons of other parties must do neither, so nothing here is markup.
"""

from __future__ import annotations

import json
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import stamina
import structlog
import typer
from rich.console import Console
from rich.measure import Measurement, measure_renderables
from rich.table import Table
from rich.text import Text

from client_agent.learning.scores import shown_score
from client_agent.site.events import RoundEnd, RoundRecord
from host.log import configure
from protocol.messages.control import Purpose
from protocol.text import printable

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


SHOWN_SCORES: Final = 2
_WEIGHED: Final = frozenset({RoundEnd.RELEASED, RoundEnd.RANKED, RoundEnd.CLOSED})
_PURPOSES: Final = {
    Purpose.UPDATE: "",
    Purpose.COUNTS: " (class counts)",
    Purpose.RANKING: " (ranking)",
    Purpose.SUMMARY: " (summary)",
    Purpose.MEASURE: " (measured, nothing summed)",
}


def json_line(values: dict[str, object]) -> None:
    """To standard output."""
    sys.stdout.write(json.dumps(values) + "\n")


def round_line(record: RoundRecord, before: RoundRecord | None) -> str:
    """State, cost, scores on this site's test data, weights; reasons that the line ``before`` gave are not repeated."""
    weighed = record.alphas if record.state in _WEIGHED else ()  # nobody's weight counts where nothing was shared
    alphas = " ".join(f"{entry.site}={entry.value:.3f}" for entry in weighed)
    scored = "".join(f", {shown_score(score)}" for score in record.test_scores[:SHOWN_SCORES])
    kilobytes = (record.bytes_up + record.bytes_down) / 1000
    reason = f" ({record.reason_after(before)})" if record.reason else ""
    what = record.state.value + _PURPOSES[record.purpose]
    cost = f"{record.seconds:.2f} s, {kilobytes:.0f} kB"
    isolated = "" if record.isolation is None else f", isolation {record.isolation:.3f}"
    taken = f", took part: {' '.join(record.took_part)}" if record.took_part else ""
    weights = f", weights: {alphas}" if alphas else ""
    without = record.missing_after(before)
    left = f", without: {without}" if without else ""
    return f"round {record.round} {what}{reason}: {cost}{scored}{isolated}{taken}{left}{weights}"


def log_to_stderr() -> None:
    """Structured log lines on stderr: standard output belongs to results."""
    configure(logging.INFO)
    stamina.instrumentation.set_on_retry_hooks([_log_retry])


def _log_retry(details: stamina.instrumentation.RetryDetails) -> None:
    structlog.get_logger("agent").warning("retry", number=details.retry_num, detail=str(details.caused_by))
