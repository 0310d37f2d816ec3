"""A command of ``moiety`` in the process that was forked for it, which imports this module: no pytest here."""

from __future__ import annotations

import os
import sys

from moiety import main


def called(pid: str, folder: str, *words: str) -> None:
    """Run a command in a folder; it prints where the program ``pid`` would."""
    os.dup2(os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND), 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))  # a pipe has no place to seek
    os.chdir(folder)
    main(words)
