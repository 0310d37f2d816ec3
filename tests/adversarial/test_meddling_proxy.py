"""What a proxy that opens TLS puts behind envelopes, and what a server then answers over its own signature.

The refusal would be believed: a requester ends a study that a server refuses to go on with, and a refused end is taken
to have come too late. Shares and questions are attacks ``proxy-alters-a-share`` and ``proxy-lengthens-requests``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from client_agent.network.body import Body
from client_agent.network.server_client import ServerClient
from harness.adversaries.hostile_messages import Round
from harness.adversaries.proxy_attacks import Proxy, agents_client
from harness.adversaries.scripted_rounds import REQUESTER, SITES, VICTIM, Pair
from harness.adversaries.signed_client import digest_of
from harness.federation.memory.servers import ServersInMemory
from protocol.channel.signing import DigestField
from protocol.errors import MalformedMessage, RefusedMessage
from protocol.parameters import Needs
from protocol.sharing import Side

Change = Callable[[bytes], bytes]


@dataclass
class Meddled:
    """A study with one announced round, and agents' clients behind a proxy that does ``change``."""

    opened: Round

    def client(self, name: str, change: Change) -> ServerClient:
        connect = self.opened.federation.connect
        assert connect is not None
        return agents_client(self.opened.federation, Side.A, name, Proxy(connect(), change))


@pytest.fixture(scope="module")
def meddled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meddled]:
    with ServersInMemory(tmp_path_factory.mktemp("meddled"), SITES) as servers:
        pair = Pair(servers)
        opened = pair.round(2_000, opens=Needs.NOTHING)
        opened.sites.announce(opened.announcement)
        yield Meddled(opened)
        pair.close()


def test_what_the_site_itself_sent_wrongly_is_refused_as_that(meddled: Meddled, tmp_path: Path) -> None:
    opened, path = meddled.opened, tmp_path / "share.sealed"
    other = opened.announcement.model_copy(update={"weight_list_digest": "22" * 32})
    path.write_bytes(opened.fresh(VICTIM, announcement=other)[Side.A].sealed())
    client = meddled.client(VICTIM, bytes)
    share = Body.contribution(path, digest_of(path.read_bytes(), DigestField.SEALED))
    with pytest.raises(RefusedMessage, match="bound to another study or announcement"):
        client.contribute(opened.sites.study.name, 1, 1, share)
    client.close()


@pytest.mark.parametrize("behind", [b"\0", bytes(2**23)], ids=["little", "much"])
def test_a_letter_is_refused_for_its_own_length_whatever_stands_behind_it(behind: bytes, meddled: Meddled) -> None:
    client = meddled.client(VICTIM, lambda body: body + behind)
    with pytest.raises(MalformedMessage, match="this one has 3"):
        client.put_mail(meddled.opened.sites.study.name, "decline-1", REQUESTER, Body.of(b"abc"))
    client.close()


def test_an_end_arrives_with_bytes_behind_it(meddled: Meddled) -> None:
    """Refused, the requester would take the study to have ended otherwise, and no site would ever hear of it."""
    name, client = meddled.opened.sites.study.name, meddled.client(REQUESTER, lambda body: body + b"\0")
    client.end(name, meddled.opened.sites.ended())
    assert client.view(name).end is not None
    client.close()
