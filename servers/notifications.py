"""Wakes whoever waits for a change; everything runs on one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict


class Changes:
    """Two events a study, replaced whenever the study changes: one for all changes, one for those that views show.

    Most contributions are in no view. Were all who wait for one woken by each, a round of n sites would wake n * n.
    Take the event first, then look at the state, then wait: no change can be missed.
    """

    def __init__(self) -> None:
        self._events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._shown: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._numbers: Counter[str] = Counter()

    def next(self, study: str) -> asyncio.Event:
        """The event that the study's next change sets."""
        return self._events[study]

    def next_shown(self, study: str) -> asyncio.Event:
        """The event that the study's next change sets of which there is something in a view."""
        return self._shown[study]

    def number(self, study: str) -> int:
        """Grows with every change that views show: what was read at this number is still so."""
        return self._numbers[study]

    def notify(self, study: str) -> None:
        self._numbers[study] += 1
        self._set(self._shown, study)
        self._set(self._events, study)

    def notify_held(self, study: str) -> None:
        """There is one contribution more, and no view shows it."""
        self._set(self._events, study)

    def notify_all(self) -> None:
        """Something may have changed that nobody told of."""
        for study in {*self._events, *self._shown, *self._numbers}:
            self.notify(study)

    @staticmethod
    def _set(events: dict[str, asyncio.Event], study: str) -> None:
        event = events.pop(study, None)
        if event is not None:
            event.set()


async def wait_up_to(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event was set within ``seconds``."""
    try:
        await asyncio.wait_for(event.wait(), max(seconds, 0))
    except TimeoutError:
        return False
    return True
