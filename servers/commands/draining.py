"""``moiety server drain``: before an upgrade."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from servers.commands.making import ConfigOption

if TYPE_CHECKING:
    from servers.draining.drain import Drained

_DRAIN_EVERY_S: Final = 0.2
_DRAIN_STOPS_WITHIN_S: Final = 60.0


@dataclass(frozen=True)
class _Drain:
    """Have the server that runs take nothing new, end the rounds under way, and stop: before an upgrade or a backup."""

    config: ConfigOption
    within: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for rounds under way; what is left goes on after the start.")
    ] = 600.0
    stay: Annotated[
        bool,
        typer.Option("--stay", help="Drained, it keeps running until it is stopped: for what restarts containers."),
    ] = False


def _drain(asked: _Drain) -> None:
    from host.one_holder import holder_of
    from protocol.errors import ConfigurationError
    from servers.draining.drain import Drain, ask
    from servers.settings import load_settings

    settings = load_settings(asked.config)
    data_dir = settings.data_dir
    if holder_of(data_dir) is None:
        raise ConfigurationError(f"key 'data_dir': no server runs on {data_dir}: there is nothing to drain")
    if not settings.roster.exists():
        typer.echo("nothing is under way: the federation is not founded yet; stop it whenever you like")
        return
    ask(data_dir, Drain(asked.within, asked.stay))
    parked = _waited(data_dir, asked).parked
    left = f"; under way still, and resumed at the start: {', '.join(parked)}" if parked else ""
    then = "stop it, and start the new release" if asked.stay else "it has stopped: start the new release"
    typer.echo(f"no new round or study is taken{left}; {then}")


def _waited(data_dir: Path, asked: _Drain) -> Drained:
    """Raises: Unavailable"""
    from host.one_holder import holder_of
    from protocol.errors import Unavailable
    from servers.draining.drain import drained

    until = time.monotonic() + asked.within + _DRAIN_STOPS_WITHIN_S
    while time.monotonic() < until:
        found = drained(data_dir)
        if found is not None and (asked.stay or holder_of(data_dir) is None):
            return found
        time.sleep(_DRAIN_EVERY_S)
    raise Unavailable(f"the server did not drain within {asked.within + _DRAIN_STOPS_WITHIN_S:g} s: see its log")
