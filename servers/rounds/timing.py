"""How long a round's phases take on side A: marks at which one begins, metrics when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from servers.server import Server
from servers.store.interface import StudyRecord


@dataclass(frozen=True, eq=False)
class Phases:
    """The marks of every study's current round."""

    server: Server
    _marks_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def mark(self, study: StudyRecord, event: str) -> None:
        """The event happens now, unless it has before."""
        self._marks_s.setdefault((study.digest, event), self.server.clock())

    def observe(self, study: StudyRecord, since: str, phase: str) -> None:
        """A phase that began at ``since`` is over; nothing where a restart lost the mark."""
        begun = self._marks_s.get((study.digest, since))
        if begun is not None:
            self.server.metrics.phase_s.labels(phase).observe(self.server.clock() - begun)

    def forget(self, digest: str) -> None:
        """The study's round is over."""
        for key in [key for key in self._marks_s if key[0] == digest]:
            del self._marks_s[key]
