"""Durations of a round's phases on side A: marks at which one begins, metrics when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from servers.monitoring.metrics import Metrics
from servers.monitoring.traces import NoTraces, Traces


@dataclass(frozen=True, eq=False)
class Phases:
    """The marks of every study's current round; a study is named by its digest."""

    metrics: Metrics
    clock: Callable[[], float]
    traces: Traces = field(default_factory=NoTraces)
    _marks_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def mark(self, digest: str, event: str) -> None:
        """The event happens now, unless it has before."""
        self._marks_s.setdefault((digest, event), self.clock())

    def observe(self, digest: str, since: str, phase: str) -> None:
        """A phase that began at ``since`` is over; nothing where a restart lost the mark."""
        begun = self._marks_s.get((digest, since))
        if begun is not None:
            ended = self.clock()
            self.metrics.phase_s.labels(phase).observe(ended - begun)
            self.traces.phase(digest, phase, begun, ended)

    def forget(self, digest: str) -> None:
        """The study's round is over."""
        self.traces.round_over(digest, self.clock())
        for key in [key for key in self._marks_s if key[0] == digest]:
            del self._marks_s[key]
