"""Several processes of one server: notice what others commit, wait for the lease, sweep orphaned files.

PostgreSQL says it (LISTEN and NOTIFY), and says nothing twice: who is not connected just then misses it. So the count
of changes is looked at as well: what was counted and not heard of is missed, and then everybody looks.

A lease alone keeps nobody from going on who stood still for longer than it lasts. What does is the number of the start
that comes with it, which every change of the driver is compared with where it is committed (docs/adr/0038).

A share is written before a row names it, so a file without a row may be one of those that are being stored. Who has had
no row at two looks half an hour apart, and was not written to meanwhile, gets none any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from host import log
from host.audit_log import Action
from protocol.errors import MoietyError
from servers.background.duties import Duties
from servers.event_loop import keep_doing
from servers.server import Server
from servers.store.processes import EVERYTHING, News

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
            await keep_doing(self.look, _NEWS_LOOKED_AT_EVERY_S, _news_log, "news_not_looked_for")
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


_FILES_LOOKED_AT_EVERY_S: Final = 1800.0
_files_log = log.logger("strays")


class Strays:
    """Files that had no row at the last look, with the time at which each was last written to."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._seen: dict[str, float] = {}
        self._seen_in_storage: set[str] = set()

    def look(self) -> int:
        """-> how many were deleted"""
        files, named = self._server.files, self._server.store.files()
        found = {name: written_s for name, written_s in files.written().items() if name not in named}
        gone = [name for name, written_s in found.items() if self._seen.get(name) == written_s]
        files.delete(gone)
        self._seen = {name: written_s for name, written_s in found.items() if name not in gone}
        return len(gone) + self._look_into_storage(named)

    def _look_into_storage(self, named: set[str]) -> int:
        strays = self._server.shares.strays(named)
        gone = strays & self._seen_in_storage
        self._server.files.delete(gone)
        self._seen_in_storage = strays - gone
        return len(gone)


_SIGNS_A_LEASE: Final = 4
_log = log.logger("lease")


async def drive_in_turn(server: Server, duties: Duties, fail: Callable[[], None]) -> None:
    """Wait for the lease, drive while it is held, and ``fail``, which ends the process, once it is lost or anything
    else goes wrong; until it is cancelled.
    """
    seconds, clock = server.settings.limits.lease_s, asyncio.get_running_loop().time
    asked_s = clock()
    while (boot := _taken(server, seconds)) is None:
        await asyncio.sleep(seconds / _SIGNS_A_LEASE)
        asked_s = clock()
    try:
        await _drive(server, duties, boot, asked_s + seconds)
    except Exception:
        _log.exception("lease_failed", start=boot)
    fail()


async def _drive(server: Server, duties: Duties, boot: int, until_s: float) -> None:
    """Until the lease is lost, which was taken up to ``until_s`` of the loop's time. However it ends, nobody takes this
    process for the one that drives any more.
    """
    swept = keep_doing(Strays(server).look, _FILES_LOOKED_AT_EVERY_S, _files_log, "not_swept")
    strays = asyncio.create_task(swept)
    try:
        server.drive(boot)
        server.audit.add(Action.STARTED, f"side {server.side.value}, start {boot}, drives")
        _log.info("drives", start=boot)
        duties.begin()
        await _keep(server, server.settings.limits.lease_s, until_s)
        _log.error("lease_lost", start=boot)
    finally:
        server.drives = False
        strays.cancel()
        try:
            await duties.end()
        finally:
            with suppress(MoietyError):
                server.store.let_go_of_lease()


def _taken(server: Server, seconds: float) -> int | None:
    """The number of this start; None while somebody else drives, or nobody can say."""
    try:
        return server.store.take_lease(seconds)
    except MoietyError as error:
        _log.warning("lease_not_taken", code=error.code, detail=error.detail)
    except Exception:
        _log.exception("lease_not_taken")
    return None


async def _keep(server: Server, seconds: float, until_s: float) -> None:
    """Returns once the lease is another's, or may be: the database did not answer for as long as it lasts."""
    clock = asyncio.get_running_loop().time
    while clock() < until_s:
        await asyncio.sleep(seconds / _SIGNS_A_LEASE)
        asked_s = clock()
        try:
            if not server.store.renew_lease(seconds):
                return
            until_s = asked_s + seconds
        except MoietyError as error:
            _log.warning("lease_not_renewed", code=error.code, detail=error.detail)
