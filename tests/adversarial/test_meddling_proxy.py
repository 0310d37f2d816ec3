"""A proxy that opens TLS, before an agent's own client: what it reads, and what it adds behind envelopes.

A refusal for what it adds would be signed and believed: a requester ends a study that a server refuses to go on with,
and a refused end is taken to have come too late. What it makes up, loses and alters are attacks ``proxy-...``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from client_agent.net.answers import UnsignedAnswer
from client_agent.net.envelopes import Body
from client_agent.net.server_client import ServerClient
from harness.attack.hostile_messages import Round
from harness.attack.proxy_attacks import Proxy, Tamper, agents_client, as_it_is, share_of
from harness.attack.scripted_rounds import REQUESTER, VICTIM, pair_in_memory
from harness.attack.signed_client import digest_of
from protocol.channel.signing import DigestField
from protocol.errors import MalformedMessage, RefusedMessage
from protocol.messages.control import ReadyNotice
from protocol.parameters import Needs
from protocol.sharing import Side
from tests.kit.present import present


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Round]:
    """A study with one announced round, of which most of a share stands behind its envelope."""
    with pair_in_memory(tmp_path_factory.mktemp("meddled")) as pair:
        made = pair.round(2_000, opens=Needs.NOTHING)
        made.sites.announce(made.announcement)
        yield made


def behind(opened: Round, name: str, more: bytes = b"", side: Side = Side.A, tamper: Tamper = as_it_is) -> ServerClient:
    """An agent's client behind a proxy that puts ``more`` behind every body, or makes up answers."""
    proxy = Proxy(present(opened.federation.connect)(), lambda body: body + more, tamper)
    return agents_client(opened.federation, side, name, proxy)


def test_a_proxy_reads_no_names_and_nothing_of_what_is_asked_or_answered(opened: Round, tmp_path: Path) -> None:
    """The public header of a share names its site: it is enclosed, what follows is ciphertext."""
    study, proxy = opened.sites.study, Proxy(present(opened.federation.connect)())
    client = agents_client(opened.federation, Side.B, VICTIM, proxy)
    client.view(study.name)
    client.ready(study.name, ReadyNotice(study_digest=study.digest(), site=VICTIM))
    client.contribute(study.name, 1, 1, share_of(opened, VICTIM, tmp_path))
    client.close()
    read = b""
    for request, answer in zip(proxy.asked, proxy.answers, strict=True):
        read += str(request.url).encode() + repr(request.headers).encode() + request.read()
        read += repr(answer.headers).encode() + answer.read()
    assert {request.url.path for request in proxy.asked} == {"/v1/sealed"}
    assert len(read) > 16_000
    operator = opened.federation.roster.operator_b.name
    words = ("ready", "view", "cursor", "stud", "hospital", "contribution", study.name, study.digest(), operator)
    assert [word for word in words if word.encode() in read] == []


def test_a_replayed_request_earns_no_signed_refusal(opened: Round) -> None:
    """Sent a second time, a request is refused, and that refusal is nobody's statement."""
    problem = json.dumps({"code": "bad_signature", "detail": "this nonce came before"}).encode()
    client = behind(opened, VICTIM, tamper=lambda request, answer: httpx.Response(401, content=problem))
    with pytest.raises(UnsignedAnswer, match="this nonce came before"):
        client.view(opened.sites.study.name)
    client.close()


def test_what_the_site_itself_sent_wrongly_is_refused_as_that(opened: Round, tmp_path: Path) -> None:
    path, other = tmp_path / "share.sealed", opened.announcement.model_copy(update={"weight_list_digest": "22" * 32})
    path.write_bytes(opened.fresh(VICTIM, announcement=other)[Side.A].sealed())
    client = behind(opened, VICTIM)
    share = Body.contribution(path, digest_of(path.read_bytes(), DigestField.SEALED))
    with pytest.raises(RefusedMessage, match="bound to another study or announcement"):
        client.contribute(opened.sites.study.name, 1, 1, share)
    client.close()


@pytest.mark.parametrize("more", [b"\0", bytes(2**23)], ids=["little", "much"])
def test_a_letter_is_refused_for_its_own_length_whatever_stands_behind_it(more: bytes, opened: Round) -> None:
    client = behind(opened, VICTIM, more)
    with pytest.raises(MalformedMessage, match="this one has 3"):
        client.put_mail(opened.sites.study.name, "decline-1", REQUESTER, Body.of(b"abc"))
    client.close()


def test_an_end_arrives_with_bytes_behind_it(opened: Round) -> None:
    """Refused, the requester would take the study to have ended otherwise, and no site would ever hear of it."""
    name, client = opened.sites.study.name, behind(opened, REQUESTER, b"\0")
    client.end(name, opened.sites.ended())
    assert client.view(name).end is not None
    client.close()
