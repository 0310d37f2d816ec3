"""The driver's lease in the database; a process that loses it ends.

A lease alone keeps nobody from going on who stood still for longer than it lasts. What does is the number of the start
that comes with it, which every change of the driver is compared with where it is committed (docs/adr/0038).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from host import log
from host.audit_log import Action
from protocol.errors import MoietyError
from servers.driving.duties import Duties
from servers.driving.strays import Strays
from servers.server import Server

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
    strays = asyncio.create_task(Strays(server).keep_away())
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
