"""A person's terminal for commands of ``moiety``."""

from __future__ import annotations

from pathlib import Path

import pytest

from moiety import main


class Terminal:
    """Answers what a command printed; ``> FILE`` puts it into a file as a shell does."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object, status: int | None = None) -> str:
        """Raises: AssertionError for an error that is printed, or another status than ``status``"""
        typed = [str(word) for word in words]
        into = typed[typed.index(">") + 1] if ">" in typed else None
        self._capsys.readouterr()
        ended: object = 0
        try:
            main(typed[: typed.index(">")] if into else typed)
        except SystemExit as end:
            ended = end.code or 0
        printed = self._capsys.readouterr()
        assert status or "error" not in printed.err, f"{' '.join(typed)}: {printed.err}"
        assert status in (None, ended), f"{' '.join(typed)} ended with {ended}: {printed.out}{printed.err}"
        if into:
            Path(into).write_text(printed.out, encoding="utf-8")
        return printed.out
