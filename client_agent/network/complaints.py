"""Problems that last: each is said once, not at every try, and again when it has become another one."""

from __future__ import annotations

import threading
from collections.abc import Callable


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
