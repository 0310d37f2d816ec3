"""Recent events at this server, in memory, for its operator to read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from protocol.errors import ErrorCode

_KEPT: Final = 50
_KEPT_CHARACTERS: Final = 300


@dataclass
class PeerSeen:
    """When the other server's last sign of life came, since 1970, and by how much this clock was ahead of its then."""

    at_s: float | None = None
    ahead_s: float | None = None

    def saw(self, now_s: float, its_time_s: float | None) -> None:
        self.at_s = now_s
        if its_time_s is not None:
            self.ahead_s = now_s - its_time_s


@dataclass(frozen=True)
class Refused:
    """One request that was refused, in the words of the answer."""

    at_s: float
    code: ErrorCode
    detail: str


@dataclass
class Recent:
    """The last refusals, the peer, and when the requester last asked for anything, at first this start."""

    clock: Callable[[], float]
    peer: PeerSeen = field(default_factory=PeerSeen)
    requester_at_s: float = field(init=False)
    _refused: deque[Refused] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def __post_init__(self) -> None:
        self.requester_at_s = self.clock()

    def note_refusal(self, code: ErrorCode, detail: str) -> None:
        self._refused.append(Refused(self.clock(), code, detail[:_KEPT_CHARACTERS]))

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The newest first."""
        return tuple(reversed(self._refused))
