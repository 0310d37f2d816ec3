"""A person's terminal: commands of ``moiety`` in this process, and lines for a shell."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moiety import main
from tests.documents.lines import ROOT

PATIENCE_S = 900.0
"""Enough for processes of a busy machine."""


def environment() -> dict[str, str]:
    """This process's, in which ``moiety`` is this checkout's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def shell(line: str, folder: Path, within_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a line in a shell; it may fail."""
    command = ["bash", "-ec", line]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=within_s
    )


def until_said(said: str, log: Path, times: int = 1, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a process, which goes on, has written this so often."""
    deadline = time.monotonic() + PATIENCE_S
    while log.read_text().count(said) < times:
        assert process is None or process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


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
