"""Problems that last: each is said once, not at every try, and again when it has become another one."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Final

from host.files import is_full
from protocol.errors import MoietyError, StorageFull

_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})


class Complaints:
    """``say`` is called with a place and a text when the text is news about that place; safe to use from threads."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._said: dict[str, str] = {}
        self._lock = threading.Lock()

    def about(self, place: str, text: str) -> None:
        with self._lock:
            known = self._said.get(place) == text
            self._said[place] = text
        if not known:
            self._say(place, text)

    def mended(self, place: str) -> None:
        """It went well there: the same problem is news again."""
        with self._lock:
            self._said.pop(place, None)


def words_of(failure: MoietyError | OSError) -> str:
    """Describe what went wrong and, where this machine's files are the cause, what to do about it."""
    if isinstance(failure, MoietyError):
        return f"{failure.code.value}: {failure.detail}"
    what = failure.strerror or str(failure)
    if failure.filename is not None:
        what = f"{failure.filename}: {what}"
    if is_full(failure):
        return f"{StorageFull.code.value}: {what}: free space on this machine's disk"
    if failure.errno in _DENIED:
        return (
            f"{what}: give it to the user that this agent runs as, number {os.getuid()} (chown); commands run with "
            "sudo leave files that only root may read"
        )
    return f"{what} ({type(failure).__name__}): look at this machine's disk and at what else uses the state folder"
