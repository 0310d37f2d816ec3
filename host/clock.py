"""The time, and how a thread waits for something or for the time to pass: both are arguments of whoever waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar


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


def moment(time_s: float) -> str:
    """A time since 1970 for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))


K = TypeVar("K")
T = TypeVar("T")
_LOOK_AGAIN_S: Final = 3600.0


class _Calls(Generic[K, T]):
    """The results of calls made at once; ``changed`` is notified whenever one has ended."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.results: dict[K, T] = {}
        self.errors: dict[K, BaseException] = {}

    def ended(self) -> int:
        return len(self.results) + len(self.errors)

    def run(self, key: K, call: Callable[[], T]) -> None:
        try:
            result = call()
        except BaseException as error:
            with self.changed:
                self.errors[key] = error
                self.changed.notify_all()
        else:
            with self.changed:
                self.results[key] = result
                self.changed.notify_all()


def at_once(calls: Mapping[K, Callable[[], T]], clock: Clock, name: str) -> dict[K, T]:
    """Return each call's result; the first error, in the order of ``calls``, is raised after all have ended.

    The caller waits on ``clock``, so that time may pass there while one of the calls waits for a slow answer. No
    thread outlives its call: one that idles would count as one that works.
    """
    made: _Calls[K, T] = _Calls()
    for key, call in calls.items():
        threading.Thread(target=made.run, args=(key, call), name=f"{name} {key}", daemon=True).start()
    with made.changed:
        while not clock.wait_for(made.changed, lambda: made.ended() == len(calls), _LOOK_AGAIN_S):
            pass
    for key in calls:
        if key in made.errors:
            raise made.errors[key]
    return {key: made.results[key] for key in calls}
