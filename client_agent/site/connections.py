"""This site's connections to both servers, every byte of them in its ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import structlog

from client_agent.net.contacts import CLOCK_ERROR_S, CONTACTS, Contacts, NotedTransport
from client_agent.net.ledger import Ledger
from client_agent.net.server_client import ServerClient
from client_agent.net.transport import CountingTransport, Pace, Paces, tls_context
from client_agent.net.watch import Complaints, words_of
from client_agent.settings import AgentSettings
from client_agent.site.events import AgentEvent, EventKind, EventSink
from client_agent.site.identity import load_chain
from host.clock import SYSTEM, Clock
from host.files import private_folder
from host.folder_lock import OWNER, Owner, one_process, require_owner
from protocol.errors import MoietyError
from protocol.roster.chain import RosterChain
from protocol.sharing import Side
from protocol.text import printable

Connect = Callable[[str, Ledger], httpx.BaseTransport]
"""The way to the server of that name."""


_ANOTHER_FOLDER: Final = (
    "give this agent a folder of its own. If it is the same hospital under another name (docs/joining.md, 'New keys'), "
    f"delete {OWNER} there and start again"
)


def one_agent(settings: AgentSettings) -> AbstractContextManager[None]:
    """While it is entered no other process uses this site's state folder. Raises: ConfigurationError"""
    return one_process(settings.state_dir, "state_dir", f"the agent of {settings.site!r}")


class Site:
    """This site's identity, its connections to both servers and its ledger; a context manager."""

    def __init__(self, settings: AgentSettings, connect: Connect | None = None, clock: Clock = SYSTEM) -> None:
        self.settings = settings
        self.clock = clock
        self.chain, self.keys = load_chain(settings)
        self.roster = self.chain.head
        private_folder(settings.state_dir)
        self.came_with = self.chain.founding_keys[settings.site]
        _require_own(settings.state_dir, self.keys.name, self.chain)
        self.ledger = Ledger(settings.state_dir / "ledger.jsonl")
        self.contacts = Contacts(settings.state_dir / CONTACTS, clock.now)
        connect = connect or _over_tls(settings)
        self.clients: dict[Side, ServerClient] = {}
        for side in Side:
            operator = self.roster.operator(side)
            transport = NotedTransport(operator.name, connect(operator.name, self.ledger), self.contacts)
            client = ServerClient(side, operator, self.keys, transport, clock=clock.now, in_sessions=True, waits=clock)
            client.keep_quiet(settings.quiet)
            self.clients[side] = client

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.disconnect()
        self.ledger.close()

    def disconnect(self) -> None:
        """Close all connections; calls under way fail at once."""
        for client in self.clients.values():
            client.close()

    @property
    def is_requester(self) -> bool:
        return self.settings.site == self.roster.requester


def _require_own(state_dir: Path, site: str, chain: RosterChain) -> None:
    """The folder is this site's, with whichever of the keys that it has had. Raises: ConfigurationError"""
    ids = dict.fromkeys(party.key_id for roster in chain.rosters for party in roster.sites if party.name == site)
    first, *later = (Owner("site", site, key) for key in ids)  # of all federations: it remembers sums over the data
    require_owner(state_dir, "state_dir", first, _ANOTHER_FOLDER, former=later)


def _over_tls(settings: AgentSettings) -> Connect:
    context, proxy = tls_context(settings.ca), settings.web_proxy
    caps = settings.bandwidth_up_bytes_per_s, settings.bandwidth_down_bytes_per_s
    paces = Paces(*(None if cap is None else Pace(cap) for cap in caps))  # over both servers
    return lambda server, ledger: CountingTransport(server, context, ledger, proxy=proxy, paces=paces)


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
