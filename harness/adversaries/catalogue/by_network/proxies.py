"""A proxy that opens TLS, as hospitals have them, before a real server and an agent's own client.

It may stop what passes; it must not be believed, and it must not make a server say what an agent believes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from client_agent.network.body import Body
from client_agent.network.server_client import ServerClient
from harness.adversaries.catalogue.attack import Attack, Found, Party
from harness.adversaries.hostile.act import Round
from harness.adversaries.scripted.proxy import Proxy, agents_client
from harness.adversaries.scripted.there import there
from harness.adversaries.scripted_rounds import SITES, VICTIM, Pair
from harness.adversaries.signed_client import digest_of
from harness.federation.memory.servers import ServersInMemory
from protocol.parameters import Needs
from protocol.sharing import Side
from protocol.wire.channel.signing import DigestField

_DIMENSION: Final = 2_000
"""Most of such a share stands behind the envelope."""


class BehindAProxy(Attack):
    """One round of two real servers, of which a site's client at server B speaks through the proxy."""

    party = Party.NETWORK
    in_sessions = False

    def attempt(self, folder: Path) -> Found:
        with ServersInMemory(folder, SITES) as servers:
            pair = Pair(servers)
            opened = pair.round(_DIMENSION, opens=Needs.NOTHING)
            opened.sites.announce(opened.announcement)
            proxy = Proxy(there(servers.connect, "way to the servers")())
            client = agents_client(servers, Side.B, VICTIM, proxy, in_sessions=self.in_sessions)
            try:
                reached = list(self._reached(opened, proxy, client, folder))
            finally:
                client.close()
                pair.close()
        return Found(bool(reached), len(reached), "; ".join(reached))

    @abstractmethod
    def _reached(self, opened: Round, proxy: Proxy, client: ServerClient, folder: Path) -> Iterator[str]:
        """What the proxy reached, in words."""


def share_of(opened: Round, site: str, folder: Path) -> Body:
    """A site's honest share for server B, as its agent sends it."""
    sealed, path = opened.honest[site][Side.B].sealed(), folder / f"{site}.share"
    path.write_bytes(sealed)
    return Body.contribution(path, digest_of(sealed, DigestField.SEALED))
