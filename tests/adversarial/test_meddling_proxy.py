"""A proxy that opens TLS alters what a site sends, so that the server itself refuses it, over its own signature.

The refusal would be believed: a requester ends a study that a server refuses to go on with, a site takes no part in a
round whose server refuses its share, and a refused end is taken to have come too late. So nothing that a proxy can
touch decides what a server answers, but that the body did not arrive as it left; and that is no refusal.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from client_agent.network.body import Body
from client_agent.network.exchange import AlteredBody
from client_agent.network.server_client import RetryPolicy, ServerClient
from harness.adversaries.scripted.signed_client import digest_of
from harness.adversaries.scripted.sites import ScriptedSites, make_study
from protocol.errors import MalformedMessage, RefusedMessage
from protocol.sharing import Side, vector_side
from protocol.wire.authentic import sign
from protocol.wire.channel.envelope import LENGTH_BYTES
from protocol.wire.channel.signing import DigestField
from protocol.wire.keyfile import PartyKeys
from protocol.wire.messages import Announcement, EndCause, ReadyNotice, StudyEnd, StudyEndState
from tests.adversarial.in_process import Bridge, running_apps
from tests.integration.test_server_round import SITES
from tests.kit.processes import prepare_servers

REQUESTER, SITE = SITES[0], SITES[1]
DIMENSION = 2_000
"""Most of such a share stands behind the envelope."""
Change = Callable[[bytes], bytes]


def envelope_end(body: bytes) -> int:
    return LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "big")


def flipped(body: bytes, at: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 1]) + body[at:][1:]


def with_more_behind(body: bytes) -> bytes:
    return body + b"\0"


def with_much_behind(body: bytes) -> bytes:
    return body + bytes(2**23)


CHANGES: dict[str, Change] = {
    "first_byte": lambda body: flipped(body, envelope_end(body)),
    "last_byte": lambda body: flipped(body, len(body) - 1),
    "cut_off": lambda body: body[:-1],
    "nothing_left": lambda body: body[: envelope_end(body)],
}
BEHIND = [with_more_behind, with_much_behind]


class Meddling(httpx.BaseTransport):
    """Changes the bodies of requests on their way."""

    def __init__(self, onward: Bridge) -> None:
        self._onward = onward
        self.change: Change = bytes

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = self.change(request.read())
        headers = [(name, value) for name, value in request.headers.multi_items() if name != "content-length"]
        return self._onward.handle_request(httpx.Request(request.method, request.url, headers=headers, content=body))


@dataclass
class Meddled:
    """A study with one announced round, and two agents' clients behind the proxy."""

    proxy: Meddling
    sites: ScriptedSites
    announcement: Announcement

    def takes_vector(self, name: str) -> Side:
        return vector_side(self.sites.federation.roster.place(name))

    def client(self, name: str) -> ServerClient:
        keys: PartyKeys = self.sites.clients[name].keys
        side = self.takes_vector(name)
        operator = self.sites.federation.roster.operator(side)
        return ServerClient(side, operator, keys, self.proxy, retry=RetryPolicy(attempts=2, first_wait_s=0.0))


@pytest.fixture(scope="module")
def meddled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meddled]:
    made = prepare_servers(tmp_path_factory.mktemp("meddled"), SITES, seed=7)
    with running_apps(made, time.time) as apps:
        sites = ScriptedSites(made, make_study(made, DIMENSION))
        for client in sites.clients.values():
            client.http.close()
            client.http = httpx.Client(transport=apps.bridge, trust_env=False, timeout=60)
        sites.create()
        announcement = sites.announcement(1)
        sites.announce(announcement)
        yield Meddled(Meddling(apps.bridge), sites, announcement)
        sites.close()


def share(meddled: Meddled, site: str, folder: Path, announcement: Announcement) -> Body:
    x = np.arange(DIMENSION, dtype=np.uint64)
    sealed = meddled.sites.seal_contribution(site, x, announcement).bodies[meddled.takes_vector(site)]
    path = folder / "share.sealed"
    path.write_bytes(sealed)
    return Body.contribution(path, digest_of(sealed, DigestField.SEALED))


@pytest.mark.parametrize("change", CHANGES)
def test_a_share_that_was_altered_on_its_way_is_sent_again(change: str, meddled: Meddled, tmp_path: Path) -> None:
    """However it is altered: the server's refusal of it is none of what the site sent."""
    body, client = share(meddled, SITE, tmp_path, meddled.announcement), meddled.client(SITE)
    meddled.proxy.change = CHANGES[change]
    with pytest.raises(AlteredBody, match="look for a proxy"):
        client.contribute(meddled.sites.study.name, 1, 1, body)
    client.close()


def test_what_the_site_itself_sent_wrongly_is_refused_as_that(meddled: Meddled, tmp_path: Path) -> None:
    meddled.proxy.change = bytes
    other = meddled.announcement.model_copy(update={"weight_list_digest": secrets.token_hex(32)})
    client = meddled.client(SITE)
    with pytest.raises(RefusedMessage, match="bound to another study or announcement"):
        client.contribute(meddled.sites.study.name, 1, 1, share(meddled, SITE, tmp_path, other))
    client.close()


def test_and_the_share_is_taken_once_the_proxy_leaves_it_alone(meddled: Meddled, tmp_path: Path) -> None:
    body, client = share(meddled, SITES[2], tmp_path, meddled.announcement), meddled.client(SITES[2])
    meddled.proxy.change = CHANGES["first_byte"]
    with pytest.raises(AlteredBody):
        client.contribute(meddled.sites.study.name, 1, 1, body)
    meddled.proxy.change = bytes
    assert client.contribute(meddled.sites.study.name, 1, 1, body).message.site == SITES[2]
    client.close()


@pytest.mark.parametrize("change", BEHIND)
def test_bytes_behind_a_share_change_nothing(change: Change, meddled: Meddled, tmp_path: Path) -> None:
    site = SITES[3] if change is BEHIND[0] else REQUESTER
    body, client = share(meddled, site, tmp_path, meddled.announcement), meddled.client(site)
    meddled.proxy.change = change
    assert client.contribute(meddled.sites.study.name, 1, 1, body).message.site == site
    client.close()


@pytest.mark.parametrize("change", BEHIND)
def test_bytes_behind_an_envelope_change_nothing(change: Change, meddled: Meddled, tmp_path: Path) -> None:
    """A control message is enclosed as a whole: letters, notices and questions arrive whatever stands behind them."""
    meddled.proxy.change = change
    name, digest = meddled.sites.study.name, meddled.sites.study.digest()
    client = meddled.client(SITE)
    client.ready(name, ReadyNotice(study_digest=digest, site=SITE))
    assert client.view(name).ready[-1:] == (SITE,)
    with pytest.raises(MalformedMessage, match="this one has 3"):
        client.put_mail(name, "decline-1", REQUESTER, Body.of(b"abc"))
    client.close()


def test_an_end_arrives_with_bytes_behind_it(meddled: Meddled) -> None:
    """Refused, the requester would take the study to have ended otherwise, and no site would ever hear of it."""
    meddled.proxy.change = with_more_behind
    name, client = meddled.sites.study.name, meddled.client(REQUESTER)
    message = StudyEnd(
        study_digest=meddled.sites.study.digest(),
        state=StudyEndState.COMPLETED,
        cause=EndCause.ALL_ROUNDS_DONE,
        reason="done",
    )
    client.end(name, sign(message, REQUESTER, meddled.sites.clients[REQUESTER].keys.signing))
    assert client.view(name).end is not None
    client.close()
