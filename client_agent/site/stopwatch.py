"""Durations of a round's phases at this site."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from client_agent.site.events import Phase


class Stopwatch:
    """Seconds by phase since the last round's record."""

    def __init__(self) -> None:
        self._phases: dict[str, float] = {}
        self._start = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - begin

    def take(self) -> tuple[tuple[Phase, ...], float]:
        """The phases and all seconds so far; starts again."""
        phases = tuple(Phase(name=name, seconds=seconds) for name, seconds in self._phases.items())
        now = time.perf_counter()
        seconds, self._start, self._phases = now - self._start, now, {}
        return phases, seconds
