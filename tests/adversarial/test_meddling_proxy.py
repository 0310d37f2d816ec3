"""A proxy that opens TLS, before an agent's own client: what it adds behind envelopes.

A refusal for what it adds would be signed and believed: a requester ends a study that a server refuses to go on with,
and a refused end is taken to have come too late. What it makes up, loses and alters are attacks ``proxy-...``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client_agent.net.envelopes import Body
from client_agent.net.server_client import ServerClient
from harness.attack.proxy_attacks import Proxy, agents_client
from harness.attack.scripted_rounds import REQUESTER, VICTIM, RoundInMemory, pair_in_memory
from harness.attack.signed_client import digest_of
from protocol.channel.signing import DigestField
from protocol.errors import MalformedMessage, RefusedMessage
from protocol.parameters import Needs
from protocol.sharing import Side
from tests.kit.present import present


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoundInMemory]:
    """A study with one announced round, of which most of a share stands behind its envelope."""
    with pair_in_memory(tmp_path_factory.mktemp("meddled")) as pair:
        made = pair.round(2_000, opens=Needs.NOTHING)
        made.sites.announce(made.announcement)
        yield made


def behind(opened: RoundInMemory, name: str, more: bytes = b"") -> ServerClient:
    """An agent's client of server A behind a proxy that puts ``more`` behind every body."""
    proxy = Proxy(present(opened.federation.connect)(), lambda body: body + more)
    return agents_client(opened.federation, Side.A, name, proxy)


def test_what_the_site_itself_sent_wrongly_is_refused_as_that(opened: RoundInMemory, tmp_path: Path) -> None:
    path, other = tmp_path / "share.sealed", opened.announcement.model_copy(update={"weight_list_digest": "22" * 32})
    path.write_bytes(opened.fresh(VICTIM, announcement=other)[Side.A].sealed())
    client = behind(opened, VICTIM)
    share = Body.contribution(path, digest_of(path.read_bytes(), DigestField.SEALED))
    with pytest.raises(RefusedMessage, match="bound to another study or announcement"):
        client.contribute(opened.sites.study.name, 1, 1, share)
    client.close()


@pytest.mark.parametrize("more", [b"\0", bytes(2**23)], ids=["little", "much"])
def test_a_letter_is_refused_for_its_own_length_whatever_stands_behind_it(more: bytes, opened: RoundInMemory) -> None:
    client = behind(opened, VICTIM, more)
    with pytest.raises(MalformedMessage, match="this one has 3"):
        client.put_mail(opened.sites.study.name, "decline-1", REQUESTER, Body.of(b"abc"))
    client.close()


def test_an_end_arrives_with_bytes_behind_it(opened: RoundInMemory) -> None:
    """Refused, the requester would take the study to have ended otherwise, and no site would ever hear of it."""
    name, client = opened.sites.study.name, behind(opened, REQUESTER, b"\0")
    client.end(name, opened.sites.ended())
    assert client.view(name).end is not None
    client.close()
