"""This site's connections to both servers, every byte of them in its ledger."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import httpx

from client_agent.network.contacts import CONTACTS, Contacts, NotedTransport
from client_agent.network.ledger import Ledger
from client_agent.network.server_client import ServerClient
from client_agent.network.sockets.pace import Paces
from client_agent.network.transport import CountingTransport, tls_context
from client_agent.settings import AgentSettings
from client_agent.site.identity import load_chain
from host.clock import SYSTEM, Clock
from host.files import private_folder
from host.folder_lock import OWNER, Owner, one_process, require_owner
from protocol.roster.chain import RosterChain
from protocol.sharing import Side

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
    context, proxy = tls_context(settings.ca, settings.tls.minimum), settings.web_proxy
    paces = Paces.of(settings.bandwidth_up_bytes_per_s, settings.bandwidth_down_bytes_per_s)  # over both servers
    return lambda server, ledger: CountingTransport(server, context, ledger, proxy=proxy, paces=paces)
