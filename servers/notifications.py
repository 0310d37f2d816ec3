"""Wakes whoever waits for a change; everything runs on one event loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict


class Changes:
    """One event a study, replaced whenever the study changes.

    Take the event first, then look at the state, then wait: no change can be missed.
    """

    def __init__(self) -> None:
        self._events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def next(self, study: str) -> asyncio.Event:
        """The event that the study's next change sets."""
        return self._events[study]

    def notify(self, study: str) -> None:
        event = self._events.pop(study, None)
        if event is not None:
            event.set()


async def wait_up_to(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event was set within ``seconds``."""
    try:
        await asyncio.wait_for(event.wait(), max(seconds, 0))
    except TimeoutError:
        return False
    return True
