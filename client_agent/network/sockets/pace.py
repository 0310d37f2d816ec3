"""So many bytes in a second and no more: a cap on what this site sends or takes in, over all its connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PACED_BYTES: Final = 2**14
"""How many bytes at most cross a capped socket at once, so that a wait is short."""
_BURST_S: Final = 0.25


class Pace:
    """A bucket of tokens, one a byte; who takes more than there are waits until they have come.

    After a quiet time a quarter of a second's worth is there at once. Safe to use from several threads.
    """

    def __init__(
        self,
        bytes_per_s: int,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = threading.Lock()
        self._paid_until_s = monotonic() - _BURST_S

    def take(self, count: int) -> None:
        """Take bytes that have just crossed; returns when they are paid for."""
        with self._lock:
            now_s = self._monotonic()
            self._paid_until_s = max(self._paid_until_s, now_s - _BURST_S) + count / self._bytes_per_s
            wait_s = self._paid_until_s - now_s
        if wait_s > 0:
            self._sleep(wait_s)


@dataclass(frozen=True)
class Paces:
    """Caps in both directions; None: none."""

    up: Pace | None = None
    down: Pace | None = None

    @classmethod
    def of(cls, up_bytes_per_s: int | None, down_bytes_per_s: int | None) -> Paces:
        return cls(
            None if up_bytes_per_s is None else Pace(up_bytes_per_s),
            None if down_bytes_per_s is None else Pace(down_bytes_per_s),
        )


NO_CAP: Final = Paces()
