"""A running server looks whether it is to be drained, and then stops by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from host import log
from servers.draining.drain import Drain, Drained, asked, begin, say_drained, under_way
from servers.server import Server
from servers.settings import Role

_LOOKED_AT_EVERY_S: Final = 1.0
_SETTLES_S: Final = 1.0
"""After the last round: agents fetch what was released, and the other server what it lacks."""
_log = log.logger("drain")


async def keep_draining(server: Server, stop: Callable[[], None]) -> None:
    """Until it is cancelled, or until ``stop`` was called because everything is drained."""
    data_dir = server.settings.data_dir
    if server.settings.role is not Role.UPLOAD:
        begin(data_dir)
    while (drain := asked(data_dir)) is None:
        await asyncio.sleep(_LOOKED_AT_EVERY_S)
    server.drains = True
    _log.info("draining", under_way=", ".join(under_way(server)), within_s=drain.within_s)
    parked = await _settled(server, drain)
    if server.drives:
        say_drained(data_dir, Drained(parked))
    _log.info("drained", parked=", ".join(parked))
    if not drain.stay:
        stop()


async def _settled(server: Server, drain: Drain) -> tuple[str, ...]:
    """The studies whose rounds are under way still when the time is over."""
    clock = asyncio.get_running_loop().time
    until_s = clock() + drain.within_s
    while (waits := under_way(server)) and clock() < until_s:
        await asyncio.sleep(_LOOKED_AT_EVERY_S)
    if not waits:
        await asyncio.sleep(_SETTLES_S)
    return waits
