"""The time, and how a thread waits for something or for the time to pass: both are arguments of whoever waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol


class Clock(Protocol):
    """The machine's, or one that goes on by itself when everybody waits."""

    def now(self) -> float:
        """Seconds since 1970; may be set back by a person."""

    def monotonic(self) -> float:
        """Seconds that only grow."""

    def wait(self, event: threading.Event, at_most_s: float) -> bool:
        """Return whether the event was set within that time."""

    def wait_for(self, changed: threading.Condition, holds: Callable[[], bool], at_most_s: float) -> bool:
        """As ``threading.Condition.wait_for``: the caller holds the condition, which whoever changes something
        notifies."""


class SystemClock:
    """This machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, at_most_s: float) -> bool:
        return event.wait(at_most_s)

    def wait_for(self, changed: threading.Condition, holds: Callable[[], bool], at_most_s: float) -> bool:
        return changed.wait_for(holds, at_most_s)


SYSTEM: Final = SystemClock()
