"""``python -m harness.bench.against.whole.adopting COMMAND...`` becomes COMMAND, to which orphans below it belong.

A program that detaches its helpers (a double fork) would have them counted nowhere. Linux's "child subreaper" mark
outlives exec, so that whatever a peer starts stays in the tree below it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36


def main(command: list[str]) -> None:
    """Does not return. Raises: OSError"""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    os.execvp(command[0], command)  # noqa: S606 - becoming another program is all that this one is for


if __name__ == "__main__":
    main(sys.argv[1:])
