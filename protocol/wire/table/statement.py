"""The check that a study's query is one SQL statement that reads.

Every site runs the query on a database of its own, so a query that no site can run is refused where it is written.
This is no parser of SQL: it splits a text into comments, quoted text, words and signs as PostgreSQL and DuckDB do, and
as SQLite does but for texts in dollar signs, which SQLite does not have. It refuses a nested comment, which not all end
at the same place. What a statement may reach is decided by each site's connection.
"""

from __future__ import annotations

import re
from typing import Final

_PIECE: Final = re.compile(
    r"""
      (?P<skipped>--[^\n]*|/\*(?:(?!\*/|/\*).)*+\*/|[ \t\n]+)
    | (?P<quoted>[eE]'(?:[^'\\]|\\.|'')*+'|'[^']*'|"[^"]*"|`[^`]*`|\$(?P<tag>(?:(?!\d)%W+)?)\$.*?\$(?P=tag)\$)
    | (?P<word>%W[$\w\u0080-\U0010ffff]*)
    | (?P<open>/\*|['"`])
    | (?P<sign>.)
    """.replace("%W", r"[\w\u0080-\U0010ffff]"),  # every character beyond ASCII is a letter to both
    re.DOTALL | re.VERBOSE,
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_READS: Final = frozenset({"select", "with"})
_WRITES: Final = re.compile(r'\binto\b|[()] (?:delete from\b|update [\w"`])|\bfor (?:no key |key )?(?:update|share)\b')


def reading_statement(query: str) -> str:
    """Return the query's one statement, without what ends it and follows.

    Raises: ValueError, when it is not one statement that reads
    """
    text = query.replace("\r\n", " \n")  # as long as it was: places below are the query's
    if _CONTROL.search(text):
        raise _refused("it holds a control character; lines end with a line feed")
    words: list[str] = []
    end = None
    before = ""
    for piece in _PIECE.finditer(text):
        if piece.lastgroup == "skipped":
            before += " "
            continue
        if before.startswith("' ") and piece[0][0] == "'":  # PostgreSQL reads E'' and '' on two lines as one text
            raise _refused("a text goes on in another one: join them with ||")
        before = piece[0][-1]
        if piece[0] == ";":
            end = piece.start() if end is None else end
            continue
        if end is not None:
            raise _refused("leave out what follows the first ';'")
        if piece.lastgroup == "open":
            raise _refused(f"{piece[0]} is not closed, or stands in a comment")
        words.append(piece[0].lower() if piece.lastgroup == "word" else piece[0][-1])
    if not words or words[0] not in _READS:
        raise _refused("begin with SELECT or WITH")
    found = _WRITES.search(" ".join(words))
    if found is not None:
        raise _refused(f"leave out {found[0].strip('() ').upper()}")
    return query[:end]


def _refused(why: str) -> ValueError:
    return ValueError(f"query: not one statement that reads: {why}")
