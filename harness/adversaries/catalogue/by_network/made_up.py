"""Answers that a proxy makes up, alters, keeps for later or gives to another question."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import httpx

from client_agent.network.server_client import ServerClient
from harness.adversaries.catalogue.attack import NO_SIGNATURE_COUNTS, Attack
from harness.adversaries.catalogue.by_network.proxies import BehindAProxy
from harness.adversaries.hostile.act import Round
from harness.adversaries.scripted.proxy import Proxy, as_it_is, between, whole
from harness.adversaries.scripted_rounds import OTHER, VICTIM, OpenRound
from protocol.bodies import sealed
from protocol.errors import RefusedMessage, Unavailable
from protocol.parameters import Needs
from protocol.sharing import Side
from protocol.wire.channel.answers import sign_answer
from protocol.wire.channel.envelope import ANSWER_TYPE, close_answer
from protocol.wire.channel.sealing import SealedReader
from protocol.wire.messages import Announcement, ReadyNotice

_MOST_BYTES: Final = 2**16
_UNBOUND: Final[Mapping[str, object]] = {
    **NO_SIGNATURE_COUNTS,
    "protocol.wire.channel.envelope.Correspondence.info": lambda between, what: what.encode(),
}
"""No signature is looked at, and an envelope is bound to no request."""
Tamper: TypeAlias = Callable[[httpx.Request, httpx.Response], httpx.Response]


def _plain(status: int, content: bytes) -> Tamper:
    return lambda request, answer: httpx.Response(status, content=content)


def _without_length(answer: httpx.Response) -> list[tuple[str, str]]:
    return [(name, value) for name, value in answer.headers.multi_items() if name != "content-length"]


def _own_envelope(opened: Round, status: int, content: bytes) -> Tamper:
    """Sealed to the site, as anybody can: what is missing is the server's signature."""

    def tamper(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
        server, site = opened.federation.roster.operator_b, opened.federation.keys(VICTIM)
        made = close_answer(status, content, site.sealing.public, between(request, server.key_id))
        return httpx.Response(200, headers=_without_length(answer), content=made)

    return tamper


def _signed_by_a_site(opened: Round, status: int, content: bytes) -> Tamper:
    """The proxy of a hospital has that hospital's key at best; it says that the key is the server's."""

    def tamper(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
        server, federation = opened.federation.roster.operator_b, opened.federation
        made = close_answer(status, content, federation.keys(VICTIM).sealing.public, between(request, server.key_id))
        headers = sign_answer(
            200,
            ANSWER_TYPE,
            hashlib.sha256(made).digest(),
            federation.keys(OTHER).signing,
            server.key_id,
            created=int(federation.clock.now()),
            request_signature=request.headers["signature"],
        )
        return httpx.Response(200, headers=list(headers), content=made)

    return tamper


def _lies(opened: Round) -> dict[str, Tamper]:
    """What a proxy may show in place of a view of the study."""
    view = opened.sites.view(Side.B, VICTIM)
    end = view.model_copy(update={"end": opened.sites.ended()}).canonical()
    bare = json.dumps({**json.loads(view.canonical()), "state": "completed", "reason": "over"}).encode()
    refused = json.dumps({"code": "not_listed", "detail": "you are out"}).encode()
    gone = json.dumps({"code": "unknown_study", "detail": "gone"}).encode()
    return {
        "an end in plain": _plain(200, end),
        "an end without its requester": _plain(200, bare),
        "a refusal in plain": _plain(403, refused),
        "no such study": _plain(404, gone),
        "a page of its own": _plain(200, b"<html>sign in to the hospital's network</html>"),
        "an end in an envelope": _own_envelope(opened, 200, end),
        "a refusal in an envelope": _own_envelope(opened, 403, refused),
        "an end that a site signs": _signed_by_a_site(opened, 200, end),
        "a refusal that a site signs": _signed_by_a_site(opened, 403, refused),
        "another status": lambda request, answer: httpx.Response(404, headers=answer.headers, content=answer.content),
        "one bit": lambda request, answer: httpx.Response(
            200, headers=answer.headers, content=answer.content[:-1] + bytes([answer.content[-1] ^ 1])
        ),
        "half of it": lambda request, answer: httpx.Response(
            200, headers=_without_length(answer), content=answer.content[:-100]
        ),
    }


def believed(ask: Callable[[], object]) -> bool:
    """Whether a client takes what comes for the server's word, an answer or a refusal; it names what it does not."""
    try:
        ask()
    except Unavailable:
        return False
    except RefusedMessage:
        return True
    return True


class MadeUp(BehindAProxy):
    """Whatever comes without the server's signature over this very request says nothing, and is asked for again."""

    name = "proxy-makes-answers-up"
    tries = "answers a site itself: the study has ended, you are out, there is none, half an answer, an old one"
    defence = "every answer is signed over its request and sealed to who asked; what is not says nothing"
    figure = "made-up answers that an agent's client believed"
    without = _UNBOUND

    def _reached(self, opened: Round, proxy: Proxy, client: ServerClient, folder: Path) -> Iterator[str]:
        name = opened.sites.study.name
        notice = ReadyNotice(study_digest=opened.sites.study.digest(), site=VICTIM)
        client.ready(name, notice)
        client.view(name)
        taken, old = proxy.answers[0], proxy.answers[1]
        lies = {
            **_lies(opened),
            "an old view again": lambda request, answer: whole(old),
            "the answer to another question": lambda request, answer: whole(taken),
        }
        for words, lie in lies.items():
            proxy.tamper = lie
            if believed(lambda: client.view(name)):
                yield words
            proxy.tamper = as_it_is
            if not believed(lambda: client.view(name)):
                yield f"{words}: and the client did not go on after it"


class SwappedOutput(BehindAProxy):
    """A sum's half is made while it is sent: its head is signed, its chunks are authenticated by the key in it."""

    name = "proxy-swaps-a-sum"
    tries = "alters, cuts off or exchanges the half of a sum that a site fetches"
    defence = "the signature over a sealed message's head, whose key authenticates every chunk"
    figure = "other sums than the server's that an agent's client handed on as whole"
    without = _UNBOUND

    def _reached(self, opened: Round, proxy: Proxy, client: ServerClient, folder: Path) -> Iterator[str]:
        name, key = opened.sites.study.name, opened.federation.keys(VICTIM).sealing

        def fetch(number: int) -> bytes:
            def take(pieces: Iterator[bytes]) -> bytes:
                return b"".join(sealed.opened(SealedReader(key), pieces))

            return client.fetch_output(name, number, take, _MOST_BYTES)

        opened.finish()
        fetch(opened.number)
        earlier = proxy.answers[-1]
        later = OpenRound(opened.sites, _next(opened), opened.x)
        later.finish()
        fetch(later.number)
        for words, content in _altered(proxy.answers[-1].content).items():
            proxy.tamper = partial(_with_body, content=content)
            if believed(lambda: fetch(later.number)):
                yield words
        proxy.tamper = lambda request, answer: whole(earlier)
        if believed(lambda: fetch(later.number)):
            yield "the sum of the round before"


def _next(opened: Round) -> Announcement:
    return opened.sites.announcement(opened.number + 1, listed=opened.announcement.listed, opens=Needs.NOTHING)


def _altered(fetched: bytes) -> dict[str, bytes]:
    """A sealed half of a sum, changed on its way."""
    return {
        "the first bit": bytes([fetched[0] ^ 1]) + fetched[1:],
        "a bit of the head": fetched[:40] + bytes([fetched[40] ^ 1]) + fetched[41:],
        "the last bit": fetched[:-1] + bytes([fetched[-1] ^ 1]),
        "cut off": fetched[:-1],
        "nothing": b"",
    }


def _with_body(request: httpx.Request, answer: httpx.Response, *, content: bytes) -> httpx.Response:
    return httpx.Response(200, headers=_without_length(answer), content=content)


def made_up_answers() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return MadeUp(), SwappedOutput()
