"""Documents walked: their commands typed as they stand there, with a test's own addresses, folders and fingerprints."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from tests.documents.lines import commands_of


class Walk:
    """The commands of some documents. ``elsewhere``: beginnings of lines that another test runs."""

    def __init__(self, documents: Sequence[str], elsewhere: Sequence[str] = ()) -> None:
        self._lines = {line: document for document in documents for line in commands_of(document)}
        self._elsewhere = tuple(elsewhere)
        self._typed: set[str] = set()

    def line(self, begins: str, put: Mapping[str, str] | None = None) -> str:
        """The one line that begins so, to be typed, with the words of ``put`` exchanged."""
        found = [begins] if begins in self._lines else [line for line in self._lines if line.startswith(begins)]
        assert len(found) == 1, f"{len(found)} lines of {sorted(set(self._lines.values()))} begin with {begins!r}"
        self._typed.add(found[0])
        typed = found[0]
        for word, own in (put or {}).items():
            typed = typed.replace(word, own)
        return typed

    def words(self, begins: str, put: Mapping[str, str] | None = None) -> list[str]:
        """The words that the shell passes to ``moiety``."""
        return shlex.split(self.line(begins, put))[1:]

    def every(self, begins: str, run: Callable[[list[str]], object], put: Mapping[str, str] | None = None) -> None:
        """Type all lines that begin so, in order."""
        found = [line for line in self._lines if line.startswith(begins)]
        assert found, begins
        for line in found:
            run(self.words(line, put))

    def left(self) -> list[str]:
        """The lines that nobody typed."""
        return [line for line in self._lines if line not in self._typed and not line.startswith(self._elsewhere)]
