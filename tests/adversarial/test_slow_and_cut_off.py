"""Answers that trickle, heads that come byte by byte, and connections of which half ends: an agent asks again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from client_agent.net.answers import SlowAnswer, UnsignedAnswer
from client_agent.net.server_client import RetryPolicy, ServerClient
from client_agent.net.transport import Account
from harness.attack.proxy_attacks import agents_client, share_of
from harness.attack.scripted_rounds import SITES, VICTIM, AttackedPair
from harness.attack.signed_client import there
from harness.attack.troubled_study import Troubled
from harness.federation.network import Fate
from harness.federation.server_apps import ServersInMemory
from protocol.channel.signing import DigestField, digest_value
from protocol.parameters import Needs
from protocol.sharing import Side
from tests.unit.client_agent.enveloped import closed, opened
from tests.unit.client_agent.federation import ROSTER, keys, operator_keys

PIECES = 16
PIECE = bytes(2**10)


@dataclass
class Trickle(httpx.SyncByteStream):
    """An answer's body in pieces, so many seconds apart; tells the time."""

    pause_s: float
    now_s: float = 1_800_000_000.0
    taken: list[int] = field(default_factory=list)

    def __iter__(self) -> Iterator[bytes]:
        for number in range(PIECES):
            self.now_s += self.pause_s
            self.taken.append(number)
            yield PIECE


def asked_for(trickle: Trickle, answer: Callable[[httpx.Request], httpx.Response]) -> None:
    """Ask for an opening; every answer trickles."""
    once, clock = RetryPolicy(attempts=1), lambda: trickle.now_s
    transport = httpx.MockTransport(answer)
    with closing(ServerClient(Side.A, ROSTER.operator_a, keys("c1"), transport, retry=once, clock=clock)) as client:
        client.opening("unit", 1, 1, 2**20)


def signed(trickle: Trickle) -> Callable[[httpx.Request], httpx.Response]:
    server = operator_keys(Side.A)

    def answer(request: httpx.Request) -> httpx.Response:
        digest = {DigestField.CONTENT.value: digest_value(DigestField.CONTENT, bytes(32))}
        asked = opened(request, server, now=int(trickle.now_s))
        return closed(asked, server, httpx.Response(200, headers=digest, stream=trickle))

    return answer


def test_an_answer_that_trickles_is_given_up_although_no_pause_is_long() -> None:
    """No read waits for two minutes, and the whole would take most of half an hour; a larger one, for ever."""
    trickle = Trickle(100.0)
    with pytest.raises(SlowAnswer, match=r"2048 bytes came in 200 s.*asked for again"):
        asked_for(trickle, signed(trickle))
    assert trickle.taken == [0, 1]


def test_a_refusal_that_trickles_keeps_no_thread_although_nobody_signed_it() -> None:
    """Whoever ends TLS can say no, and then nothing for nearly two minutes, again and again."""
    trickle = Trickle(100.0)
    with pytest.raises(UnsignedAnswer, match="answered 403"):
        asked_for(trickle, lambda request: httpx.Response(403, stream=trickle))
    assert trickle.taken == [0, 1]


def test_a_slow_line_is_no_attack() -> None:
    trickle = Trickle(2.0)
    with pytest.raises(UnsignedAnswer, match="not the one whose digest was signed") as refused:
        asked_for(trickle, signed(trickle))
    assert not isinstance(refused.value, SlowAnswer)
    assert len(trickle.taken) == PIECES


def test_a_head_that_comes_byte_by_byte_is_given_up_and_a_body_is_not_a_head() -> None:
    now_s = [50.0]
    account = Account(2**19, lambda: now_s[0])
    account.received(1)
    now_s[0] += 600.0
    account.received(1)
    now_s[0] += 1.0
    with pytest.raises(
        httpx.ReadTimeout, match="head of the answer, or the next part of it, did not come within 600 s"
    ):
        account.received(1)
    account.most_bytes = None
    account.begins()  # the head is there
    account.received(1)
    assert account.received_bytes == 4


def test_a_share_whose_connection_half_ended_is_sent_again(tmp_path: Path) -> None:
    """A signed refusal of what did not arrive would be believed: a site would take no part, or the study would end."""
    cuts: list[Fate] = []
    cut = Troubled(lambda drawn, passing: cuts.pop() if cuts else Fate(), seed=1)
    with ServersInMemory(tmp_path, SITES, cut) as servers, AttackedPair(servers) as pair:
        around = pair.round(2_000, opens=Needs.NOTHING)
        around.sites.announce(around.announcement)
        way = there(servers.connect, "way to the servers")()
        with closing(agents_client(servers, Side.B, VICTIM, way)) as client:
            cuts.append(Fate(breaks_off=True, cut_to=0.9))
            receipt = client.contribute(around.sites.study.name, around.number, 1, share_of(around, VICTIM, tmp_path))
        assert receipt.message.site == VICTIM
        assert cut.injected["request broken off"] == 1
