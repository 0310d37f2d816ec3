"""A network in one process: requests and their answers, on a clock of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx
import pytest

from harness.federation.memory.clocks import VirtualClock, VirtualLoop
from harness.federation.memory.network import Carrier, Fate, Judge, Passing, Untroubled
from protocol.sharing import Side

PATIENCE_S = 120.0
BODY = bytes(range(200))


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


@dataclass
class Carried:
    """Requests to an echo: when each arrived, and what came back or what the sender was told."""

    clock: VirtualClock
    carrier: Carrier
    arrived: list[tuple[float, bytes, bool]] = field(default_factory=list)

    async def echo(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        breaks_off = bool(request.extensions.get("breaks_off"))
        assert int(request.headers["content-length"]) == len(BODY if breaks_off else content)
        self.arrived.append((self.clock.monotonic(), content, breaks_off))
        return httpx.Response(200, content=content)

    async def ask(self) -> bytes:
        request = httpx.Request("POST", "http://b/", content=BODY, extensions={"timeout": {"read": PATIENCE_S}})
        answer = await self.carrier.carry(request, "c1", Side.B, self.echo)
        content = await answer.aread()
        assert int(answer.headers["content-length"]) == len(content)
        return content


def carried(fate: Fate | None, doing: Callable[[Carried], Awaitable[object]]) -> tuple[Carried, Told]:
    """``doing`` on a loop whose time passes whenever it waits."""
    clock = VirtualClock()
    loop, told = VirtualLoop(clock), Told(fate or Fate())
    found = Carried(clock, Carrier(told if fate else Untroubled(), clock))

    async def done() -> None:
        await doing(found)
        await found.carrier.close()

    with clock.outside():
        loop.run_until_complete(done())
    loop.close()
    return found, told


def test_untroubled_everything_arrives_once_and_at_once() -> None:
    async def doing(one: Carried) -> None:
        assert await one.ask() == BODY

    found, _ = carried(None, doing)
    assert found.arrived == [(0.0, BODY, False)]
    assert found.clock.monotonic() == 0.0


def test_requests_are_counted_by_who_asks_whom() -> None:
    async def doing(one: Carried) -> None:
        await one.ask()
        await one.ask()

    _, told = carried(Fate(held_s=0.5), doing)
    assert told.passed == [Passing("c1", Side.B, 0, len(BODY), 0), Passing("c1", Side.B, 1, len(BODY), 1, of_kind=1)]


def test_request_and_answer_are_held_and_time_passes() -> None:
    async def doing(one: Carried) -> None:
        assert await one.ask() == BODY

    found, _ = carried(Fate(held_s=5.0, answer_held_s=7.0), doing)
    assert found.arrived == [(5.0, BODY, False)]
    assert found.clock.monotonic() == 12.0


def test_a_request_that_is_held_for_long_arrives_although_its_sender_gave_up() -> None:
    async def doing(one: Carried) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await one.ask()
        assert one.clock.monotonic() == PATIENCE_S
        await asyncio.sleep(3600)

    found, told = carried(Fate(held_s=3600.0), doing)
    assert found.arrived == [(3600.0, BODY, False)]
    assert told.answered == [3600.0]


def test_a_lost_request_does_not_arrive_and_a_lost_answers_request_does() -> None:
    async def doing(one: Carried) -> None:
        with pytest.raises(httpx.TransportError):
            await one.ask()

    found, _ = carried(Fate(arrives=False), doing)
    assert found.arrived == []
    found, _ = carried(Fate(answer_arrives=False), doing)
    assert found.arrived == [(0.0, BODY, False)]


def test_a_copy_arrives_later_and_its_answer_is_told_to_the_network_alone() -> None:
    async def doing(one: Carried) -> None:
        assert await one.ask() == BODY
        await asyncio.sleep(10)

    found, told = carried(Fate(again_after_s=9.0), doing)
    assert found.arrived == [(0.0, BODY, False), (9.0, BODY, False)]
    assert told.answered == [0.0, 9.0]


def test_a_cut_request_or_answer_says_that_it_is_whole() -> None:
    async def doing(one: Carried) -> None:
        assert await one.ask() == BODY[:50]

    found, _ = carried(Fate(cut_to=0.25), doing)
    assert found.arrived == [(0.0, BODY[:50], False)]
    found, _ = carried(Fate(answer_cut_to=0.25), doing)
    assert found.arrived == [(0.0, BODY, False)]


def test_one_that_breaks_off_is_known_to_whoever_takes_it() -> None:
    async def doing(one: Carried) -> None:
        assert await one.ask() == BODY[:100]

    found, _ = carried(Fate(breaks_off=True, cut_to=0.5), doing)
    assert found.arrived == [(0.0, BODY[:100], True)]


def test_silence_lasts_as_long_as_the_sender_is_patient() -> None:
    async def doing(one: Carried) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await one.ask()

    found, _ = carried(Fate(silent=True), doing)
    assert found.clock.monotonic() == PATIENCE_S
    assert len(found.arrived) == 1


@pytest.mark.parametrize(("pause_s", "comes"), [(100.0, True), (PATIENCE_S + 1, False)])
def test_an_answer_in_pieces_comes_if_no_pause_is_too_long(pause_s: float, comes: bool) -> None:
    async def doing(one: Carried) -> None:
        if comes:
            assert await one.ask() == BODY
        else:
            with pytest.raises(httpx.ReadTimeout):
                await one.ask()

    found, _ = carried(Fate(pause_s=pause_s), doing)
    assert (found.clock.monotonic() > 10 * pause_s) is comes


@pytest.mark.parametrize(("after_s", "late"), [(60.97, 0), (61.0, 1)])
def test_a_request_is_late_once_its_signature_is_too_old_in_whole_seconds(after_s: float, late: int) -> None:
    """Seed 50002 of ``moiety faults`` holds one for 60.6 s; the phase of the second decides whether it is taken."""
    judge = Judge()
    judge.arrived(Passing("c3", Side.B, 0, 0, 0), after_s, httpx.Response(200))
    assert (judge.late_taken, judge.taken_twice) == (late, 0)
