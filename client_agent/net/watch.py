"""Both servers' newest view of one study, kept up to date by long polls; problems are reported once."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from client_agent.net.server_client import ServerClient
from host.clock import SYSTEM, Clock
from host.files import is_full
from protocol.errors import MoietyError, StorageFull, UnknownStudy
from protocol.messages.control import RoundView, StudyView
from protocol.sharing import Side

_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})


class Complaints:
    """``say`` is called with a place and a text when the text is news about that place; safe to use from threads."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._said: dict[str, str] = {}
        self._lock = threading.Lock()

    def about(self, place: str, text: str) -> None:
        with self._lock:
            known = self._said.get(place) == text
            self._said[place] = text
        if not known:
            self._say(place, text)

    def mended(self, place: str) -> None:
        """It went well there: the same problem is news again."""
        with self._lock:
            self._said.pop(place, None)


def words_of(failure: MoietyError | OSError) -> str:
    """Describe what went wrong and, where this machine's files are the cause, what to do about it."""
    if isinstance(failure, MoietyError):
        return f"{failure.code.value}: {failure.detail}"
    what = failure.strerror or str(failure)
    if failure.filename is not None:
        what = f"{failure.filename}: {what}"
    if is_full(failure):
        return f"{StorageFull.code.value}: {what}: free space on this machine's disk"
    if failure.errno in _DENIED:
        return (
            f"{what}: give it to the user that this agent runs as, number {os.getuid()} (chown); commands run with "
            "sudo leave files that only root may read"
        )
    return f"{what} ({type(failure).__name__}): look at this machine's disk and at what else uses the state folder"


_LONG_POLL_S: Final = 20.0
_UNKNOWN_PAUSE_S: Final = 0.3
_PROBLEM_PAUSE_S: Final = 1.0
_log = structlog.get_logger("agent")


class Stopped(Exception):
    """The agent is shutting down; everything that matters is journalled."""


class StudyWatch:
    """One polling thread per server; ``wait`` returns when either view has changed."""

    def __init__(
        self,
        study: str,
        clients: Mapping[Side, ServerClient],
        stop: threading.Event,
        say: Callable[[str, str], None] = lambda server, text: None,
        clock: Clock = SYSTEM,
        only_news: bool = False,
    ) -> None:
        """``say`` hears once what keeps a server's views from coming. ``only_news``: of what a contributor acts on."""
        self._study = study
        self._clients = clients
        self._stop = stop
        self._clock = clock
        self._only_news = only_news
        self._changed = threading.Condition()
        self._views: dict[Side, StudyView] = {}
        self._serial = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._complaints = Complaints(say)

    def start(self) -> None:
        for side in Side:
            name = f"watch {self._study} {side}"
            thread = threading.Thread(target=self._poll, args=(side,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the polling threads, after ``stop`` was set and the connections were closed."""
        for thread in self._threads:
            thread.join(timeout_s)

    def close(self) -> None:
        self._closed = True

    @property
    def serial(self) -> int:
        """Grows with every change: pass it to ``wait``."""
        return self._serial

    def view(self, side: Side) -> StudyView | None:
        return self._views.get(side)

    def both(self) -> tuple[StudyView, StudyView] | None:
        """The views of A and B once both are known."""
        a, b = self._views.get(Side.A), self._views.get(Side.B)
        return None if a is None or b is None else (a, b)

    def wait(self, seen: int, timeout_s: float) -> None:
        """Until something changes after ``seen``, or the time is over. Raises: Stopped"""
        with self._changed:
            self._clock.wait_for(self._changed, lambda: self._serial != seen or self._stop.is_set(), timeout_s)
        if self._stop.is_set():
            raise Stopped

    def wake(self) -> None:
        """Let a waiting thread look at the stop event."""
        with self._changed:
            self._changed.notify_all()

    def _poll(self, side: Side) -> None:
        known: StudyView | None = None
        while not (self._stop.is_set() or self._closed):
            try:
                view = self._next(side, known)
            except UnknownStudy:
                self._clock.wait(self._stop, _UNKNOWN_PAUSE_S)
            except MoietyError as error:
                if not (self._stop.is_set() or self._closed):  # then its connections are closed
                    self._complaints.about(side.value, error.detail)
                self._clock.wait(self._stop, _PROBLEM_PAUSE_S)
            except Exception:  # whatever came from there, the next view is asked for all the same
                _log.exception("view_failed", study=self._study, server=side.value)
                self._clock.wait(self._stop, _PROBLEM_PAUSE_S)
            else:
                self._complaints.mended(side.value)
                if view is not None:
                    known = view
                    self.publish(side, view)

    def _next(self, side: Side, known: StudyView | None) -> StudyView | None:
        """A view that differs from the ``known`` one; None, when the time was over before there was one."""
        client = self._clients[side]
        if known is None:
            return client.view(self._study)
        if self._only_news:
            return client.news(self._study, known, _LONG_POLL_S)
        view = client.view(self._study, known.cursor, _LONG_POLL_S)
        return None if view.cursor == known.cursor else view

    def publish(self, side: Side, view: StudyView) -> None:
        """A newer view of one server's, for whoever waits."""
        with self._changed:
            self._views[side] = view
            self._serial += 1
            self._changed.notify_all()


def same_round(views: tuple[StudyView, StudyView]) -> tuple[RoundView, RoundView] | None:
    """Both servers' view of the current round, once they speak of the same one."""
    a, b = views[0].current, views[1].current
    return None if a is None or b is None or a.round != b.round else (a, b)
