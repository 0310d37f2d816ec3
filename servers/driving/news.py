"""Notice commits of this server's other processes, so that waiters in this one go on.

PostgreSQL says it (LISTEN and NOTIFY), and says nothing twice: who is not connected just then misses it. So the count
of changes is looked at as well: what was counted and not heard of is missed, and then everybody looks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from host import log
from protocol.errors import MoietyError
from servers.processes.beside import EVERYTHING, News
from servers.server import Server

_NEWS_LOOKED_AT_EVERY_S: Final = 1.0
_CONNECTED_AGAIN_AFTER_S: Final = 0.5
_news_log = log.logger("news")


class Hearing:
    """Listens in a thread, from ``keep`` on until that is cancelled."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = threading.Event()
        self._heard = set[int]()
        """Numbers of changes above ``_all_up_to``, this process's own among them."""
        self._all_up_to = 0
        self._last: int | None = None
        """The count of changes at the last look, all of which should be heard of at the next."""

    async def keep(self) -> None:
        loop = asyncio.get_running_loop()

        def from_thread(news: News) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self.hear, news)

        thread = threading.Thread(target=self._listen, args=(from_thread,), name="news", daemon=True)
        thread.start()
        try:
            while True:
                await asyncio.sleep(_NEWS_LOOKED_AT_EVERY_S)
                try:
                    self.look()
                except Exception:
                    _news_log.exception("news_not_looked_for")
        finally:
            self._over.set()
            await asyncio.to_thread(thread.join)

    def _listen(self, heard: Callable[[News], None]) -> None:
        while not self._over.is_set():
            try:
                self._server.store.listen(heard, self._over)
            except Exception as error:
                _news_log.warning("not_listening", error=type(error).__name__)
                self._over.wait(_CONNECTED_AGAIN_AFTER_S)

    def hear(self, news: News) -> None:
        """On the event loop."""
        changes, beside = self._server.changes, self._server.store.beside
        self._heard.add(news.change)
        if beside is not None and news.name == beside.name:
            return
        if EVERYTHING in news.shown:
            changes.notify_all()
            return
        for study in news.shown:
            changes.notify(study)
        for study in news.held:
            changes.notify_held(study)

    def look(self) -> bool:
        """Return whether something was missed; every waiter looks now."""
        server = self._server
        try:
            if not server.drives:
                server.history.look()
            found = server.history.count()
        except MoietyError:
            return False
        missed = self._last is None or not self._heard_up_to(self._last)
        if missed:
            self._all_up_to = found
            self._heard = {number for number in self._heard if number > found}
            server.changes.notify_all()
        self._last = found
        return missed

    def _heard_up_to(self, count: int) -> bool:
        while self._all_up_to + 1 in self._heard:
            self._all_up_to += 1
            self._heard.discard(self._all_up_to)
        return self._all_up_to >= count
