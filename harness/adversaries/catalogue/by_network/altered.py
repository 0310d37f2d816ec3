"""Requests that a proxy alters, lengthens, cuts off, loses, or whose answers it loses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from client_agent.network.server_client import RetryPolicy, ServerClient
from harness.adversaries.catalogue.attack import Attack
from harness.adversaries.catalogue.by_network.made_up import believed
from harness.adversaries.catalogue.by_network.proxies import BehindAProxy, share_of
from harness.adversaries.hostile.act import Round
from harness.adversaries.scripted.proxy import Proxy
from harness.adversaries.scripted_rounds import VICTIM
from protocol.errors import MoietyError
from protocol.wire.channel.envelope import LENGTH_BYTES
from protocol.wire.messages import ReadyNotice
from servers.http.envelope import _Body

Change: TypeAlias = Callable[[bytes], bytes]


def _envelope_end(body: bytes) -> int:
    return LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "big")


def _flipped(body: bytes, at: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 1]) + body[at:][1:]


_CHANGES: Final[Mapping[str, Change]] = {
    "the first byte behind the envelope": lambda body: _flipped(body, _envelope_end(body)),
    "the last byte": lambda body: _flipped(body, len(body) - 1),
    "cut off": lambda body: body[:-1],
    "nothing behind the envelope": lambda body: body[: _envelope_end(body)],
}
_LONGER: Final[Mapping[str, Change]] = {
    "a byte more": lambda body: body + b"\0",
    "eight megabytes more": lambda body: body + bytes(2**23),
}


def _answered(ask: Callable[[], object]) -> bool:
    """Whether a request came through."""
    try:
        ask()
    except MoietyError:
        return False
    return True


class AlteredShare(BehindAProxy):
    """What is altered so that the server itself refuses it, over its signature: a site would take no part then."""

    name = "proxy-alters-a-share"
    tries = "alters a share on its way, so that the server refuses it over its own signature"
    defence = "a refusal of a body that did not arrive as it left is none of what the site sent: it is sent again"
    figure = "refusals of altered shares that an agent's client believed"
    without: Mapping[str, object] = {"client_agent.network.exchange._ALTERED": ()}

    def _reached(self, opened: Round, proxy: Proxy, client: ServerClient, folder: Path) -> Iterator[str]:
        name, share = opened.sites.study.name, share_of(opened, VICTIM, folder)
        for words, change in _CHANGES.items():
            proxy.change = change
            if believed(lambda: client.contribute(name, opened.number, 1, share)):
                yield words
        proxy.change = bytes
        if client.contribute(name, opened.number, 1, share).message.site != VICTIM:
            yield "the share was not taken once the proxy left it alone"


def _all_of_it(body: _Body, enclosed: bytes, body_bytes: int) -> None:
    """Whatever stands behind an envelope belongs to it."""
    body._held[:0] = enclosed
    body._left = 2**40


class LengthenedRequests(BehindAProxy):
    """Bytes behind what is signed: a refusal for them would be signed, and be believed."""

    name = "proxy-lengthens-requests"
    tries = "puts bytes behind shares, notices, questions and the study's end, so that they are refused"
    defence = "of a request only so many bytes count as its envelope says"
    figure = "requests that did not come through as they were"
    without: Mapping[str, object] = {"servers.http.envelope._Body.put_back": _all_of_it}

    def _reached(self, opened: Round, proxy: Proxy, client: ServerClient, folder: Path) -> Iterator[str]:
        name, share = opened.sites.study.name, share_of(opened, VICTIM, folder)
        notice = ReadyNotice(study_digest=opened.sites.study.digest(), site=VICTIM)
        for words, change in _LONGER.items():
            proxy.change = change
            asked: Mapping[str, Callable[[], object]] = {
                "a share": lambda: client.contribute(name, opened.number, 1, share),
                "a notice": lambda: client.ready(name, notice),
                "a question": lambda: client.view(name),
            }
            yield from (f"{what}, {words}" for what, ask in asked.items() if not _answered(ask))


class Lost(BehindAProxy):
    """Requests that do not arrive, or whose answers do not: sent again, they get what they got."""

    name = "proxy-loses-requests"
    tries = "loses every other request, or the answers to them"
    defence = "requests are sent again, and the same again gets the stored answer"
    figure = "requests that did not come through"
    without: Mapping[str, object] = {
        "client_agent.network.server_client.RetryPolicy": lambda **_: RetryPolicy(attempts=1)
    }

    def _reached(self, opened: Round, proxy: Proxy, client: ServerClient, folder: Path) -> Iterator[str]:
        name, share = opened.sites.study.name, share_of(opened, VICTIM, folder)
        notice = ReadyNotice(study_digest=opened.sites.study.digest(), site=VICTIM)
        asked: Mapping[str, Callable[[], object]] = {
            "a share": lambda: client.contribute(name, opened.number, 1, share),
            "a notice": lambda: client.ready(name, notice),
            "a question": lambda: client.view(name),
        }
        for words in ("loses", "forgets"):
            setattr(proxy, words, _every_other)
            yield from (f"{what} that it {words}" for what, ask in asked.items() if not _answered(ask))
            setattr(proxy, words, lambda number: False)
        receipts = {client.contribute(name, opened.number, 1, share).canonical() for _ in range(2)}
        if len(receipts) > 1:
            yield "the same share got two receipts"


def _every_other(number: int) -> bool:
    return number % 2 == 0


def altered_requests() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return AlteredShare(), LengthenedRequests(), Lost()
