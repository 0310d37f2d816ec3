"""A proxy that opens TLS between a site that asks in a session and a server: it repeats, mixes and makes up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import httpx

from client_agent.network.server_client import ServerClient
from harness.adversaries.catalogue.attack import Attack, passes
from harness.adversaries.catalogue.by_network.made_up import Tamper, believed
from harness.adversaries.catalogue.by_network.proxies import BehindAProxy
from harness.adversaries.hostile.act import Round
from harness.adversaries.scripted.proxy import Proxy, as_it_is, whole
from harness.adversaries.scripted_rounds import VICTIM
from protocol.sharing import Side
from protocol.wire.channel.session import HEAD_BYTES, SESSION_TYPE
from protocol.wire.messages import ReadyNotice

_SESSION: Final = {"content-type": SESSION_TYPE}


def _in_session(answer: httpx.Response) -> bool:
    """Whether a server took a request as one of a session."""
    return answer.status_code == httpx.codes.OK and answer.headers.get("content-type") == SESSION_TYPE


class ReplayedInSession(BehindAProxy):
    """Every request of a session counts up, says when it was made, and is bound to its head and its server."""

    name = "session-requests-replayed"
    tries = "sends a session's requests again, late, to the other server, or with one head and another content"
    defence = "a counter serves once; the head has a tag and a time, what is sealed is bound to it, keys to the server"
    figure = "requests that a server took though their site did not send them so"
    in_sessions = True
    without: Mapping[str, object] = {
        "protocol.wire.channel.session.CounterWindow.take": passes,
        "servers.roster.sessions.require_time": passes,
    }

    def _reached(self, opened: Round, proxy: Proxy, client: ServerClient, folder: Path) -> Iterator[str]:
        name, servers = opened.sites.study.name, opened.federation
        client.view(name)
        client.ready(name, ReadyNotice(study_digest=opened.sites.study.digest(), site=VICTIM))
        one, other = (request for request in proxy.asked if request.headers["content-type"] == SESSION_TYPE)
        mixed = one.content[:HEAD_BYTES] + other.content[HEAD_BYTES:]
        held_back = self._kept_from_the_server(client, proxy, name)
        for words, side, content, after_s in (
            ("again", Side.B, one.content, 0),
            ("at the other server", Side.A, one.content, 0),
            ("the head of one, the content of another", Side.B, mixed, 0),
            ("after most of an hour", Side.B, held_back, 3000),
        ):
            servers.clock.wait(threading.Event(), after_s)
            url = f"{servers.url(side)}{one.url.path}"
            asked = httpx.Request("POST", url, headers=_SESSION, content=content)
            if _in_session(whole(proxy.onward.handle_request(asked))):
                yield words
        client.view(name)

    @staticmethod
    def _kept_from_the_server(client: ServerClient, proxy: Proxy, name: str) -> bytes:
        """A request that the proxy loses, and keeps; the agent's client sends another."""
        lost, proxy.loses = len(proxy.asked), lambda number: number == lost
        client.view(name)
        return proxy.asked[lost].content


class MadeUpInSession(BehindAProxy):
    """Whatever the session's keys do not open says nothing, but that the request is sent again in an envelope."""

    name = "session-answers-made-up"
    tries = "answers a site in a session itself: an old answer, another's, a refusal, an end, a session that is over"
    defence = "an answer opens under the session's keys, the request's counter and its head alone"
    figure = "made-up answers that an agent's client believed"
    in_sessions = True
    without: Mapping[str, object] = {
        "protocol.wire.channel.session._nonce": lambda counter: bytes(12),
        "protocol.wire.channel.session._asked_by": lambda head: b"",
    }

    def _reached(self, opened: Round, proxy: Proxy, client: ServerClient, folder: Path) -> Iterator[str]:
        name, clock = opened.sites.study.name, opened.federation.clock
        client.ready(name, ReadyNotice(study_digest=opened.sites.study.digest(), site=VICTIM))
        client.view(name)
        taken, old = proxy.answers[-2], proxy.answers[-1]
        for words, lie in _lies(old, taken).items():
            clock.wait(threading.Event(), 1200)  # a client that was lied to asks in envelopes for a while
            client.view(name)
            assert proxy.asked[-1].headers["content-type"] == SESSION_TYPE
            proxy.tamper = lie
            if believed(lambda: client.view(name)):
                yield words
            proxy.tamper = as_it_is
            if not believed(lambda: client.view(name)):
                yield f"{words}: and the client did not go on after it"


def _lies(old: httpx.Response, taken: httpx.Response) -> dict[str, Tamper]:
    over = json.dumps({"code": "session_unknown", "detail": "over"}).encode()
    refused = json.dumps({"code": "unknown_study", "detail": "gone"}).encode()
    flipped = old.content[:-1] + bytes([old.content[-1] ^ 1])
    return {
        "an old view again": lambda request, answer: whole(old),
        "the answer to another question": lambda request, answer: whole(taken),
        "one bit": lambda request, answer: httpx.Response(200, headers=_SESSION, content=flipped),
        "half of it": lambda request, answer: httpx.Response(200, headers=_SESSION, content=answer.content[:-100]),
        "nothing": lambda request, answer: httpx.Response(200, headers=_SESSION, content=b""),
        "a refusal in plain": lambda request, answer: httpx.Response(404, content=refused),
        "the session is over, for ever": lambda request, answer: httpx.Response(401, content=over),
    }


def in_a_session() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return ReplayedInSession(), MadeUpInSession()
