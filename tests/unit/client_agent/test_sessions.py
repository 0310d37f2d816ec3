"""An agent's session with a server: opened once, left where it is over, never needed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from client_agent.network.sessions import HeldSession, SessionKeeper
from host.clock import SystemClock
from host.randomness import SystemRandomness
from protocol.channel.encoding import KEPT
from protocol.channel.session import MOST_BACK, SessionGrant, SessionOffer, granted
from protocol.errors import MalformedMessage, Unavailable

CALLER, SERVER = "a" * 32, "b" * 32
LIVES_S = 3600


class Asked:
    """A server that grants, and a keeper on a clock of their own."""

    def __init__(self) -> None:
        self.now = 1e9
        self.offers: list[SessionOffer] = []
        self.keeper = SessionKeeper(CALLER, SystemRandomness(), lambda: self.now)

    def grants(self, offer: SessionOffer) -> SessionGrant:
        self.offers.append(offer)
        name = len(self.offers).to_bytes(16, "big")
        return granted(offer, b"g" * 32, name, LIVES_S, caller=CALLER, server=SERVER)[0]

    def session(self, ask: Callable[[SessionOffer], SessionGrant] | None = None) -> HeldSession | None:
        return self.keeper.session(SERVER, ask or self.grants)


def test_one_session_serves_many_requests_each_with_a_counter_of_its_own() -> None:
    asked = Asked()
    first = asked.session()
    assert first is not None
    assert asked.session() is first
    assert [first.next_counter() for _ in range(3)] == [0, 1, 2]
    assert len(asked.offers) == 1


def test_it_is_renewed_before_its_end_with_a_new_secret_and_key() -> None:
    asked = Asked()
    first = asked.session()
    asked.now += LIVES_S - 299
    second = asked.session()
    assert second is not first
    assert asked.offers[0].secret != asked.offers[1].secret
    assert asked.offers[0].key != asked.offers[1].key


def test_where_it_is_over_another_one_is_opened() -> None:
    asked = Asked()
    first = asked.session()
    assert first is not None
    asked.now += 61
    first.over = True
    second = asked.session()
    assert second is not None
    assert second.name != first.name


def test_where_sessions_do_not_last_they_are_left_alone_for_a_while() -> None:
    """Behind an address of several servers, or a proxy that says so, envelopes are as good."""
    asked = Asked()
    first = asked.session()
    assert first is not None
    first.over = True
    assert asked.session() is None
    asked.now += 599
    assert asked.session() is None
    asked.now += 2
    assert asked.session() is not None


def test_a_server_of_before_is_asked_in_envelopes() -> None:
    asked = Asked()

    def refuses(offer: SessionOffer) -> SessionGrant:
        asked.offers.append(offer)
        raise MalformedMessage("no such address")

    assert asked.session(refuses) is None
    assert asked.session(refuses) is None
    assert len(asked.offers) == 1


def test_a_grant_for_another_offer_is_none() -> None:
    asked = Asked()
    asked.session()
    old = asked.grants(asked.offers[0])
    asked.now += LIVES_S
    assert asked.session(lambda offer: old) is None


def test_a_server_out_of_reach_is_the_requests_trouble_and_the_next_one_tries_again() -> None:
    asked = Asked()

    def away(offer: SessionOffer) -> SessionGrant:
        raise Unavailable("away")

    with pytest.raises(Unavailable, match="away"):
        asked.session(away)
    assert asked.session() is not None


def test_another_server_of_a_changed_roster_is_another_session() -> None:
    asked = Asked()
    first = asked.session()

    def grants(offer: SessionOffer) -> SessionGrant:
        return granted(offer, b"g" * 32, bytes(16), LIVES_S, caller=CALLER, server="c" * 32)[0]

    assert asked.keeper.session("c" * 32, grants) is not first


@pytest.mark.parametrize("comes", [True, False], ids=["in time", "too late"])
def test_while_one_thread_opens_a_session_another_waits_on_its_own_clock_and_then_does_without(comes: bool) -> None:
    """Waiting on this machine's clock would hold up agents that run on another one."""
    asked, found = Asked(), list[HeldSession | None]()
    others = [threading.Thread(target=lambda: found.append(asked.session()))]

    class Waiting(SystemClock):
        def wait_for(self, changed: threading.Condition, holds: Callable[[], bool], at_most_s: float) -> bool:
            if not holds():
                waited.append(at_most_s)
                waits.set()
                if comes:
                    changed.wait_for(holds, 60)
            return holds()

    waits, waited = threading.Event(), list[float]()
    asked.keeper = SessionKeeper(CALLER, SystemRandomness(), lambda: asked.now, Waiting())

    def opening(offer: SessionOffer) -> SessionGrant:
        others[0].start()
        assert waits.wait(60)
        if not comes:
            others[0].join(60)
        return asked.grants(offer)

    opened = asked.session(opening)
    others[0].join(60)
    assert found == [opened if comes else None]
    assert (waited, len(asked.offers)) == ([5.0], 1)


def test_the_last_answer_from_an_address_is_held_and_named_by_how_far_back_it_lies() -> None:
    held = Asked().session()
    assert held is not None
    assert held.earlier("/view", 0) == (0, b"")
    held.keep("/view", 3, b"v" * 300)
    held.keep("/view", 5, b"w" * 300)
    held.keep("/short", 6, b"s")
    assert held.earlier("/view", 9) == (4, b"w" * 300)
    assert held.earlier("/view", 5) == (0, b"")
    assert held.earlier("/view", 5 + MOST_BACK + 1) == (0, b"")
    assert held.earlier("/short", 9) == (0, b"")
    for number in range(KEPT):
        held.keep(f"/{number}", 10 + number, b"x" * 300)
    assert held.earlier("/view", 20) == (0, b"")
    assert [held.earlier(f"/{number}", 20)[0] for number in range(KEPT)] == [10, 9, 8, 7]
