"""A network in one process: requests and their answers, on a clock of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httpx
import pytest

from harness.federation.clocks import VirtualClock, VirtualLoop
from harness.federation.network import Carrier, Fate, Judge, Network, Passing, Untroubled
from protocol.sharing import Side

PATIENCE_S = 120.0
LATER_S = 3600.0
BODY = bytes(range(200))
Arrived = tuple[float, bytes, bool]
"""When a request arrived at the server, its body, and whether it broke off."""


@dataclass
class Told:
    """A network with one fate for everything; ``answered``: after how long a server answered."""

    fate_of_all: Fate
    passed: list[Passing] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)

    def fate(self, passing: Passing) -> Fate:
        self.passed.append(passing)
        return self.fate_of_all

    def arrived(self, passing: Passing, after_s: float, answer: httpx.Response) -> None:
        assert BODY.startswith(answer.content)
        self.answered.append(after_s)


def carried(network: Network, requests: int = 1) -> tuple[list[bytes | type[Exception]], list[Arrived], float]:
    """Carry requests to an echo: the answers, every arrival in the end, and when the last answer was there."""
    clock = VirtualClock()
    loop, carrier = VirtualLoop(clock), Carrier(network, clock)
    back: list[bytes | type[Exception]] = []
    arrived: list[Arrived] = []
    back_s = 0.0

    async def echo(request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        breaks_off = bool(request.extensions.get("breaks_off"))
        assert int(request.headers["content-length"]) == len(BODY if breaks_off else content)
        arrived.append((clock.monotonic(), content, breaks_off))
        return httpx.Response(200, content=content)

    async def ask() -> bytes:
        request = httpx.Request("POST", "http://b/", content=BODY, extensions={"timeout": {"read": PATIENCE_S}})
        answer = await carrier.carry(request, "c1", Side.B, echo)
        content = await answer.aread()
        assert int(answer.headers["content-length"]) == len(content)
        return content

    async def doing() -> None:
        nonlocal back_s
        for _ in range(requests):
            try:
                back.append(await ask())
            except httpx.TransportError as error:
                back.append(type(error))
        back_s = clock.monotonic()
        await asyncio.sleep(LATER_S)
        await carrier.close()

    with clock.outside():
        loop.run_until_complete(doing())
    loop.close()
    return back, arrived, back_s


ONCE = [(0.0, BODY, False)]


@pytest.mark.parametrize(
    ("fate", "comes", "arrives", "back_s"),
    [
        pytest.param(Fate(), BODY, ONCE, 0.0, id="untroubled"),
        pytest.param(Fate(held_s=5.0, answer_held_s=7.0), BODY, [(5.0, BODY, False)], 12.0, id="held"),
        pytest.param(
            Fate(held_s=LATER_S), httpx.ReadTimeout, [(LATER_S, BODY, False)], PATIENCE_S, id="held until nobody waits"
        ),
        pytest.param(Fate(arrives=False), httpx.ConnectError, [], 0.0, id="lost"),
        pytest.param(Fate(answer_arrives=False), httpx.ReadError, ONCE, 0.0, id="answer lost"),
        pytest.param(Fate(again_after_s=9.0), BODY, [*ONCE, (9.0, BODY, False)], 0.0, id="copied"),
        pytest.param(Fate(cut_to=0.25), BODY[:50], [(0.0, BODY[:50], False)], 0.0, id="cut, said to be whole"),
        pytest.param(Fate(answer_cut_to=0.25), BODY[:50], ONCE, 0.0, id="answer cut, said to be whole"),
        pytest.param(
            Fate(breaks_off=True, cut_to=0.5), BODY[:100], [(0.0, BODY[:100], True)], 0.0, id="known to break off"
        ),
        pytest.param(Fate(silent=True), httpx.ReadTimeout, ONCE, PATIENCE_S, id="silent"),
        pytest.param(Fate(pause_s=100.0), BODY, ONCE, 1600.0, id="in pieces"),
        pytest.param(Fate(pause_s=PATIENCE_S + 1), httpx.ReadTimeout, ONCE, 0.0, id="in pieces too far apart"),
    ],
)
def test_every_fate_of_a_request(
    fate: Fate, comes: bytes | type[Exception], arrives: list[Arrived], back_s: float
) -> None:
    """The network is told after how long each answer was given, also of those that nobody waits for."""
    told = Told(fate)
    assert carried(told) == ([comes], arrives, back_s)
    assert told.answered == [at_s for at_s, _, _ in arrives]


def test_untroubled_everything_arrives_once_and_at_once() -> None:
    assert carried(Untroubled()) == ([BODY], ONCE, 0.0)


def test_requests_are_counted_by_who_asks_whom() -> None:
    told = Told(Fate(held_s=0.5))
    carried(told, requests=2)
    assert told.passed == [Passing("c1", Side.B, 0, len(BODY), 0), Passing("c1", Side.B, 1, len(BODY), 1, of_kind=1)]


@pytest.mark.parametrize(("after_s", "late"), [(60.97, 0), (61.0, 1)])
def test_a_request_is_late_once_its_signature_is_too_old_in_whole_seconds(after_s: float, late: int) -> None:
    """Seed 50002 of ``moiety lab faults`` holds one for 60.6 s; the phase of the second decides whether it is taken."""
    judge = Judge()
    judge.arrived(Passing("c3", Side.B, 0, 0, 0), after_s, httpx.Response(200))
    assert (judge.late_taken, judge.taken_twice) == (late, 0)
