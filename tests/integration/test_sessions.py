"""Sessions between an agent's own client and real servers: begun by itself, done without where there is none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from client_agent.net.envelopes import Body
from client_agent.net.server_client import ServerClient
from harness.attack.hostile_messages import Round
from harness.attack.proxy_attacks import Proxy, agents_client
from harness.attack.scripted_rounds import SITES, VICTIM, AttackedPair
from harness.attack.signed_client import digest_of
from harness.federation.server_apps import ServersInMemory
from protocol.channel.encoding import EarlierAnswers
from protocol.channel.envelope import SEALED_TYPE
from protocol.channel.session import LEAST_BYTES, LENGTH_BYTES, SESSION_TYPE
from protocol.channel.signing import DigestField
from protocol.errors import MalformedMessage, Unavailable
from protocol.parameters import Needs
from protocol.sharing import Side
from servers.identity.sessions import LIVES_S
from servers.server import Server
from servers.settings import Role
from tests.kit.present import present


@dataclass
class Asking:
    """A site's client at server A, and what passed on its way."""

    opened: Round
    proxy: Proxy
    client: ServerClient

    def forms(self) -> list[str]:
        """The forms of the requests so far, which are then forgotten."""
        found = [request.headers["content-type"] for request in self.proxy.asked]
        self.proxy.asked.clear()
        return found

    def later(self, seconds: float) -> None:
        self.opened.federation.clock.wait(threading.Event(), seconds)


@pytest.fixture(scope="module")
def round_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Round]:
    with ServersInMemory(tmp_path_factory.mktemp("sessions"), SITES) as servers:
        pair = AttackedPair(servers)
        opened = pair.round(2_000, opens=Needs.NOTHING)
        opened.sites.announce(opened.announcement)
        yield opened
        pair.close()


@pytest.fixture
def asking(round_: Round) -> Iterator[Asking]:
    servers = round_.federation
    proxy = Proxy(present(servers.connect)())
    client = agents_client(servers, Side.A, VICTIM, proxy, in_sessions=True)
    yield Asking(round_, proxy, client)
    client.close()


def test_a_share_goes_in_a_session_with_most_of_it_behind(asking: Asking, tmp_path: Path) -> None:
    """First, while the round is open: others let time pass."""
    opened, path = asking.opened, tmp_path / "share"
    sealed = opened.honest[VICTIM][Side.A].sealed()
    path.write_bytes(sealed)
    share = Body.contribution(path, digest_of(sealed, DigestField.SEALED))
    receipt = asking.client.contribute(opened.sites.study.name, opened.number, 1, share)
    assert receipt.message.site == VICTIM
    assert asking.forms() == [SEALED_TYPE, SESSION_TYPE]


def test_one_envelope_opens_a_session_for_all_that_follows(asking: Asking) -> None:
    name = asking.opened.sites.study.name
    views = [asking.client.view(name) for _ in range(3)]
    assert views[0] == views[1] == views[2]
    assert asking.forms() == [SEALED_TYPE, *[SESSION_TYPE] * 3]
    asking.later(LIVES_S)
    assert asking.client.view(name).study == name
    assert asking.forms() == [SEALED_TYPE, SESSION_TYPE]


def test_a_view_is_answered_by_what_differs_from_the_one_before(asking: Asking) -> None:
    """As long as both hold that one: a new session, or other answers since, cost a whole view again."""
    name, lengths = asking.opened.sites.study.name, list[int]()

    def measured(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
        lengths.append(int(answer.headers["content-length"]))
        return answer

    asking.proxy.tamper = measured
    views = [asking.client.view(name) for _ in range(3)]
    _, whole, again, once_more = lengths
    assert again == once_more == LENGTH_BYTES + LEAST_BYTES + 16 < whole / 2
    server: Server = asking.opened.federation.apps.apps[Side.A].state.server
    (held,) = [one for one in server.sessions._of.values() if one.answers.of(2)]
    held.answers = EarlierAnswers()
    views.append(asking.client.view(name))
    assert lengths[-1] == whole
    assert len(set(map(str, views))) == 1


def test_a_restart_forgets_sessions_and_costs_no_request(asking: Asking) -> None:
    """The refused request goes in an envelope at once, the next one in a new session."""
    name = asking.opened.sites.study.name
    asking.client.view(name)
    asking.later(120)
    asking.forms()
    apps = asking.opened.federation.apps
    apps.kill(Side.A)
    apps.bring_back(Side.A)
    assert asking.client.view(name).study == name
    assert asking.forms() == [SESSION_TYPE, SEALED_TYPE]
    asking.client.view(name)
    assert asking.forms() == [SEALED_TYPE, SESSION_TYPE]


def test_where_sessions_never_last_envelopes_do(asking: Asking) -> None:
    name = asking.opened.sites.study.name
    asking.client.view(name)
    server: Server = asking.opened.federation.apps.apps[Side.A].state.server
    server.sessions._of.clear()
    for _ in range(3):
        asking.client.view(name)
    assert asking.forms() == [SEALED_TYPE, SESSION_TYPE, SESSION_TYPE, *[SEALED_TYPE] * 3]


def test_a_server_of_several_processes_grants_none(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share no memory: each would not know the others' sessions."""
    server: Server = asking.opened.federation.apps.apps[Side.A].state.server
    monkeypatch.setattr(server, "settings", server.settings.model_copy(update={"role": Role.UPLOAD}))
    for _ in range(2):
        asking.client.view(asking.opened.sites.study.name)
    assert asking.forms() == [SEALED_TYPE] * 3


def test_an_answer_that_is_nobodys_ends_a_session_and_not_the_request(asking: Asking) -> None:
    name = asking.opened.sites.study.name
    asking.client.view(name)
    asking.later(120)
    asking.proxy.tamper = lambda request, answer: httpx.Response(502, content=b"<html>away</html>")
    with pytest.raises(Unavailable, match="not over its signature"):
        asking.client.view(name)
    asking.proxy.tamper = lambda request, answer: answer
    assert asking.client.view(name).study == name


def test_what_is_refused_in_a_session_is_the_servers_refusal(asking: Asking) -> None:
    with pytest.raises(MalformedMessage, match="this one has 3"):
        asking.client.put_mail(asking.opened.sites.study.name, "decline-1", SITES[0], Body.of(b"abc"))
    assert asking.forms()[-1] == SESSION_TYPE


def test_a_session_opens_no_other_one(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that somebody got hold of would live for ever."""
    asking.client.studies()
    monkeypatch.setattr("client_agent.net.server_client.paths.SESSION", "elsewhere")
    with pytest.raises(MalformedMessage, match="not in another session"):
        asking.client._send("POST", "/v1/session", Body.of(b"{}"), "session")
    assert asking.forms()[-1] == SESSION_TYPE
