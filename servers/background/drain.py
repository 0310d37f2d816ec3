"""Drain a server: the request, the moment when nothing is under way any more, and the result.

    data_dir/drain.json     somebody asks; there until the server is started again
    data_dir/drained.json   nothing is under way, or the time is over; which rounds go on after the start

A round that is left under way is resumed or repeated after the start, as after a crash (docs/protocol.md 7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from host import log
from host.files import write_durably
from servers.server import Server
from servers.settings import Role

_ASKED: Final = "drain.json"
_DONE: Final = "drained.json"


@dataclass(frozen=True)
class Drain:
    """``within_s``: what rounds under way are waited for; ``stay``: drained, the server runs until it is stopped."""

    within_s: float
    stay: bool = False


@dataclass(frozen=True)
class Drained:
    """``parked`` names the studies whose round goes on after the start."""

    parked: tuple[str, ...]


T = TypeVar("T")
_DRAIN: Final = TypeAdapter(Drain)
_DRAINED: Final = TypeAdapter(Drained)


def ask(data_dir: Path, drain: Drain) -> None:
    """Leave word for the server that runs there; what an earlier drain left is forgotten."""
    (data_dir / _DONE).unlink(missing_ok=True)
    write_durably(data_dir / _ASKED, _DRAIN.dump_json(drain))


def asked(data_dir: Path) -> Drain | None:
    """Return the request for a drain; None without one, or where it cannot be read."""
    return _read(data_dir / _ASKED, _DRAIN)


def say_drained(data_dir: Path, drained: Drained) -> None:
    write_durably(data_dir / _DONE, _DRAINED.dump_json(drained))


def drained(data_dir: Path) -> Drained | None:
    """Return the result that the server left; None while it still drains."""
    return _read(data_dir / _DONE, _DRAINED)


def _read(path: Path, kind: TypeAdapter[T]) -> T | None:
    try:
        return kind.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def begin(data_dir: Path) -> None:
    """A server that is started takes everything."""
    for name in (_ASKED, _DONE):
        (data_dir / name).unlink(missing_ok=True)


def under_way(server: Server) -> tuple[str, ...]:
    """The studies whose round is not over at this server, by name."""
    found = []
    for study in server.store.studies():
        current = None if study.state.ended else server.store.current_round(study.digest)
        if current is not None and not current.over:
            found.append(study.name)
    return tuple(found)


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
