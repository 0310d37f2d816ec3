"""Work on one event loop: waiting for a study's changes, and threads for what takes long."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Final, TypeVar

from structlog.typing import FilteringBoundLogger

from protocol.errors import MoietyError

_CLOCK_LOOKED_AT_EVERY_S: Final = 10.0


class Changes:
    """Events of a study, replaced whenever it changes: for all changes, for what views show, for one site's view.

    Most contributions are in no view, and a letter is in that of its recipient alone. Were all who wait for one woken
    by each, a round of n sites would wake n * n.
    Take the event first, then look at the state, then wait: no change can be missed.
    """

    def __init__(self) -> None:
        self._events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._shown: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._of_sites: defaultdict[str, defaultdict[str, asyncio.Event]] = defaultdict(
            lambda: defaultdict(asyncio.Event)
        )
        self._numbers: Counter[str] = Counter()

    def next(self, study: str) -> asyncio.Event:
        """The event that the study's next change sets."""
        return self._events[study]

    def next_shown(self, study: str) -> asyncio.Event:
        """The event that the study's next change sets of which there is something in a view."""
        return self._shown[study]

    def next_for(self, study: str, site: str) -> asyncio.Event:
        """The event that the next change sets of which there may be something in this site's view."""
        return self._of_sites[study][site]

    def number(self, study: str) -> int:
        """Grows with every change that views show: what was read at this number is still so."""
        return self._numbers[study]

    def notify(self, study: str) -> None:
        self._numbers[study] += 1
        for event in self._of_sites.pop(study, {}).values():
            event.set()
        self._set(self._shown, study)
        self._set(self._events, study)

    def notify_letter(self, study: str, recipient: str) -> None:
        """There is a letter that its recipient alone is shown, and that no server acts on."""
        self._numbers[study] += 1
        self._set(self._of_sites.get(study, {}), recipient)

    def notify_held(self, study: str) -> None:
        """There is one contribution more, and no view shows it."""
        self._set(self._events, study)

    def notify_all(self) -> None:
        """Something may have changed that nobody told of."""
        for study in {*self._events, *self._shown, *self._of_sites, *self._numbers}:
            self.notify(study)

    @staticmethod
    def _set(events: dict[str, asyncio.Event], study: str) -> None:
        event = events.pop(study, None)
        if event is not None:
            event.set()


async def wait_up_to(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(max(seconds, 0)):  # wait_for would make a task of it
            await event.wait()
    except TimeoutError:
        return False
    return True


async def wait_until(event: asyncio.Event, until_s: float, clock: Callable[[], float]) -> bool:
    """Return whether the event was set before ``clock`` shows ``until_s``.

    The clock is looked at again every few seconds: after it was an hour slow, no round waits for that hour.
    """
    while (left_s := until_s - clock()) > _CLOCK_LOOKED_AT_EVERY_S:
        if await wait_up_to(event, _CLOCK_LOOKED_AT_EVERY_S):
            return True
    return await wait_up_to(event, left_s)


async def keep_doing(work: Callable[[], object], every_s: float, said: FilteringBoundLogger, event: str) -> None:
    """Do it again and again until cancelled; what goes wrong is in the log as ``event``, and tried again."""
    while True:
        try:
            work()
        except MoietyError as later:
            said.warning(event, code=later.code, detail=later.detail)
        except Exception:
            said.exception(event)
        await asyncio.sleep(every_s)


T = TypeVar("T")
SHORT_BYTES: Final = 2**16
"""Up to this length sealing, opening and hashing take about a tenth of a millisecond, less than a thread to wake up."""


async def off_loop(length_bytes: int, work: Callable[[], T]) -> T:
    """The work, in a thread where it is on more bytes than the event loop should wait for."""
    return work() if length_bytes < SHORT_BYTES else await asyncio.to_thread(work)
