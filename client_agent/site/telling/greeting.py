"""Both servers are asked something signed, once, when an agent starts: whether they know this site, and the clocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from client_agent.network.complaints import Complaints, words_of
from client_agent.network.contacts import CLOCK_ERROR_S
from client_agent.site.connections import Site
from client_agent.site.events import AgentEvent, EventKind, EventSink
from protocol.errors import MoietyError
from protocol.sharing import Side
from protocol.text import printable

_AGAIN_S: Final = 10.0
_log = structlog.get_logger("agent")


@dataclass(frozen=True)
class Greeting:
    """Both answered. ``ahead_s``: of the two clocks' differences the larger; None where no answer had a time."""

    servers: tuple[str, str]
    ahead_s: float | None
    studies: int

    @property
    def text(self) -> str:
        """In one line, for people."""
        a, b = (printable(name) for name in self.servers)
        clock = (
            "clocks not compared"
            if self.ahead_s is None
            else f"clock off by {abs(self.ahead_s):.1f} s (give or take {CLOCK_ERROR_S:g})"
        )
        count = f"{self.studies} {'study' if self.studies == 1 else 'studies'}"
        return f"connected to {a} and {b}, {clock}, {count}"


def greet(site: Site) -> Greeting:
    """Raises: Unavailable while a server is away; what a server refuses this site with"""
    names: set[str] = set()
    ahead: list[float] = []
    for side in Side:
        listed = site.clients[side].studies().studies
        names |= {one.name for one in listed if site.settings.takes_part_in(one.name)}
        found = site.contacts.of(site.roster.operator(side).name).ahead_s
        ahead += [] if found is None else [found]
    servers = (site.roster.operator_a.name, site.roster.operator_b.name)
    return Greeting(servers, max(ahead, key=abs, default=None), len(names))


def say_connected(site: Site, stop: threading.Event, emit: EventSink, complain: Callable[[str], None]) -> None:
    """One line, an event and in the log, once both servers know this site, the requester's agent's too.

    Until then it is tried again; what keeps it from that is said once.
    """
    complaints = Complaints(lambda _, text: complain(text))
    name = site.settings.site
    while not stop.is_set():
        try:
            found = greet(site)
        except (MoietyError, OSError) as later:
            if not stop.is_set():  # then the connections are closed
                complaints.about(name, words_of(later))
        else:
            facts = {"servers": list(found.servers), "clock_ahead_s": found.ahead_s, "studies": found.studies}
            _log.info("connected", site=name, **facts)
            emit(AgentEvent(kind=EventKind.CONNECTED, site=name, study="", text=found.text))
            return
        site.clock.wait(stop, _AGAIN_S)
