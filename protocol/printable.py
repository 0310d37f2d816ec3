"""Other parties' words, made fit for a person's eyes: what a terminal, a log or a page would act on is replaced.

A reason to decline, a server's problem, a name in a study file: whoever writes them is not who reads them. Escape
sequences move a cursor, rewrite a title or hide a line; marks of direction show text in another order than it has;
line breaks forge lines of a log. All are replaced, and the length is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MOST_CHARACTERS: Final = 2000
MOST_LINES_CHARACTERS: Final = 2**16
_MOST_LOGGED_CHARACTERS: Final = 2**14
_REPLACEMENT: Final = "\ufffd"
_CUT: Final = " ..."


def printable(text: str, most: int = MOST_CHARACTERS) -> str:
    """``text`` on one line, of printable characters only, at most ``most`` of them.

    Printable is what Unicode calls letters, marks, numbers, punctuation and symbols, and the space: no control or
    format character (so no escape and no mark of direction), no surrogate, nothing private or unassigned. Other white
    space becomes a space.
    """
    shown = "".join(map(_shown, text[:most]))
    return shown if len(text) <= most else shown[: most - len(_CUT)] + _CUT


def printable_lines(text: str, most: int = MOST_LINES_CHARACTERS) -> str:
    """As ``printable``, with the text's own line feeds: for what this program itself wrote over several lines."""
    return "\n".join(printable(line, most) for line in text[:most].split("\n"))


def printable_values(values: Mapping[str, object]) -> dict[str, object]:
    """As ``printable_lines`` for every text among the values of one line of a log."""
    most = _MOST_LOGGED_CHARACTERS
    return {key: printable_lines(value, most) if isinstance(value, str) else value for key, value in values.items()}


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else _REPLACEMENT
