"""Drain a server: the request, the moment when nothing is under way any more, and the result.

    data_dir/drain.json     somebody asks; there until the server is started again
    data_dir/drained.json   nothing is under way, or the time is over; which rounds go on after the start

A round that is left under way is resumed or repeated after the start, as after a crash (docs/protocol.md 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from host.files import write_durably
from protocol.messages.control import RoundState
from servers.server import Server

_ASKED: Final = "drain.json"
_DONE: Final = "drained.json"
_OVER: Final = frozenset(
    {RoundState.RELEASED, RoundState.RANKED, RoundState.CLOSED, RoundState.SKIPPED, RoundState.BURNT}
)


@dataclass(frozen=True)
class Drain:
    """``within_s``: what rounds under way are waited for; ``stay``: drained, the server runs until it is stopped."""

    within_s: float
    stay: bool = False


@dataclass(frozen=True)
class Drained:
    """``parked`` names the studies whose round goes on after the start."""

    parked: tuple[str, ...]


_DRAIN: Final = TypeAdapter(Drain)
_DRAINED: Final = TypeAdapter(Drained)


def ask(data_dir: Path, drain: Drain) -> None:
    """Leave word for the server that runs there; what an earlier drain left is forgotten."""
    (data_dir / _DONE).unlink(missing_ok=True)
    write_durably(data_dir / _ASKED, _DRAIN.dump_json(drain))


def asked(data_dir: Path) -> Drain | None:
    """Return the request for a drain; None without one, or where it cannot be read."""
    try:
        return _DRAIN.validate_json((data_dir / _ASKED).read_bytes())
    except (OSError, ValidationError):
        return None


def say_drained(data_dir: Path, drained: Drained) -> None:
    """Tell the operator who asked."""
    write_durably(data_dir / _DONE, _DRAINED.dump_json(drained))


def drained(data_dir: Path) -> Drained | None:
    """Return the result that the server left; None while it still drains."""
    try:
        return _DRAINED.validate_json((data_dir / _DONE).read_bytes())
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
        if current is not None and current.state not in _OVER:
            found.append(study.name)
    return tuple(found)
