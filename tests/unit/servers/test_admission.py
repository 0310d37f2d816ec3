"""Counting strangers by address: groups, proxies, allowances, and nothing counted twice."""

from __future__ import annotations

import ipaddress
from functools import partial

import pytest

from servers.api.admission import Admission, Visit
from servers.settings import Limits

PROXIES = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8"))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def admission(clock: Clock | None = None, **limits: float) -> Admission:
    chosen = Limits.model_validate({"connections": 20, "connections_per_address": 4, "unsigned_per_s": 1.0, **limits})
    return Admission(chosen, PROXIES, clock or Clock())


def let_in(at: Admission, address: str) -> Visit:
    visit = at.admit(address)
    assert visit is not None, address
    return visit


def test_each_address_has_its_own_number_of_connections() -> None:
    at = admission()
    visits = [let_in(at, "192.0.2.1") for _ in range(4)]
    assert at.admit("192.0.2.1") is None
    let_in(at, "192.0.2.2")
    visits[0].leave()
    visits[0].leave()
    let_in(at, "192.0.2.1")
    assert at.admit("192.0.2.1") is None
    assert at.connections == 5


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("strange", "strange", True),
    ],
)
def test_addresses_that_one_stranger_has_count_as_one(first: str, second: str, same: bool) -> None:
    at = admission()
    for _ in range(4):
        let_in(at, first)
    assert (at.admit(second) is None) is same


def test_all_connections_together_have_a_bound() -> None:
    at = admission()
    visits = [let_in(at, f"192.0.2.{number}") for number in range(20)]
    for visit in visits:
        visit.begin([])
        visit.authenticated()
        visit.end()
    assert at.admit("198.51.100.1") is None
    assert at.admit("10.0.0.1") is None
    assert at.connections == 20


def test_who_holds_most_without_a_signature_makes_room_for_who_holds_fewer() -> None:
    """An idle connection first, and of these the oldest; none of a party, and none for whoever holds as many."""
    closed: list[str] = []
    at = admission(connections=17, connections_per_address=16, unsigned_per_s=100.0)
    held = {}
    for place in range(8):
        for address in ("192.0.2.1", "192.0.2.2"):
            held[address, place] = let_in(at, address)
            held[address, place].abort = partial(closed.append, f"{address} {place}")
    party = let_in(at, "192.0.2.3")
    party.begin([])
    party.authenticated()
    held["192.0.2.1", 0].begin([])
    assert at.admit("192.0.2.1") is None
    site = let_in(at, "198.51.100.1")
    assert closed == ["192.0.2.2 0"]
    let_in(at, "198.51.100.1")
    assert closed[1:] == ["192.0.2.1 1"]
    for visit in held.values():
        visit.begin([])
    let_in(at, "10.0.0.1")  # a proxy, whoever it forwards for
    assert closed[2:] == ["192.0.2.1 0"]
    assert at.connections == 17
    assert party.open
    assert site.open


def test_behind_a_proxy_who_asks_most_at_once_makes_room() -> None:
    closed: list[int] = []
    at = admission(unsigned_per_s=100.0)
    for number in range(20):
        visit = let_in(at, "10.0.0.1")
        visit.abort = partial(closed.append, number)
        if number < 6:
            assert visit.begin([b"192.0.2.%d" % (number // 4)]) is not None
    let_in(at, "10.0.0.1")
    assert closed == [0]
    assert at.connections == 20


def test_what_nobody_signed_uses_an_allowance_up_and_time_gives_it_back() -> None:
    clock = Clock()
    at = admission(clock)
    visit = let_in(at, "192.0.2.1")
    answered = [visit.begin([]) for _ in range(12)]
    assert answered == ["192.0.2.1"] * 9 + [None] * 3
    clock.now_s += 2.5
    assert [visit.begin([]) for _ in range(3)] == ["192.0.2.1"] * 2 + [None]


def test_what_a_party_signed_costs_nothing() -> None:
    at = admission()
    visit = let_in(at, "192.0.2.1")
    for _ in range(100):
        assert visit.begin([]) == "192.0.2.1"
        visit.authenticated()
        visit.end()
    assert [visit.begin([]) is not None for _ in range(11)] == [True] * 10 + [False]


def test_a_proxys_connections_are_not_one_addresss_but_the_requests_in_them_are_somebodys() -> None:
    at = admission(unsigned_per_s=100.0)
    visits = [let_in(at, "10.0.0.1") for _ in range(12)]
    held = [visit.begin([b"192.0.2.1"]) for visit in visits[:5]]
    assert held == ["192.0.2.1"] * 4 + [None]
    assert visits[5].begin([b"192.0.2.2"]) == "192.0.2.2"
    visits[0].end()
    visits[1].leave()
    assert visits[6].begin([b"192.0.2.1"]) == "192.0.2.1"
    assert visits[7].begin([b"192.0.2.1"]) == "192.0.2.1"
    assert visits[8].begin([b"192.0.2.1"]) is None


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([], "10.0.0.1"),
        ([b"192.0.2.1"], "192.0.2.1"),
        ([b"192.0.2.9, 192.0.2.1"], "192.0.2.1"),
        ([b"192.0.2.9", b"192.0.2.1, 10.3.0.1, fd00::1"], "192.0.2.1"),
        ([b"192.0.2.1, unknown"], "10.0.0.1"),
        ([b"192.0.2.1:80"], "192.0.2.1"),
        ([b"[2001:db8::1]:443"], "2001:db8::1"),
        ([b"192.0.2.1, ::ffff:10.3.0.1"], "192.0.2.1"),
        ([b"::ffff:192.0.2.1"], "192.0.2.1"),
        ([b"10.0.0.2"], "10.0.0.1"),
        ([b"\xff\xfe"], "10.0.0.1"),
    ],
)
def test_the_last_address_that_is_no_proxys_is_whom_it_forwards_for(lines: list[bytes], found: str) -> None:
    assert let_in(admission(), "10.0.0.1").begin(lines) == found
    if lines and found != "10.0.0.1":
        assert let_in(admission(), "::ffff:10.0.0.1").begin(lines) == found  # of a listener for both kinds of address


def test_nobody_else_is_believed() -> None:
    assert let_in(admission(), "192.0.2.1").begin([b"198.51.100.1"]) == "192.0.2.1"


def test_what_is_not_let_in_is_counted() -> None:
    refused: list[int] = []
    limits = Limits(connections=20, connections_per_address=4)
    at = Admission(limits, PROXIES, Clock(), on_refused=lambda: refused.append(1))
    for _ in range(6):
        at.admit("192.0.2.1")
    assert len(refused) == 2


def test_addresses_without_end_are_not_all_remembered() -> None:
    at = admission()
    for number in range(2**14 + 100):
        let_in(at, f"198.18.{number // 256}.{number % 256}").leave()
    assert len(at.unsigned._left) == 2**14


def test_connections_that_moved_large_bodies_are_few() -> None:
    at = admission(connections=40, connections_per_address=40, unsigned_per_s=10.0)
    visits = [let_in(at, "192.0.2.1") for _ in range(18)]
    for visit in visits[:17]:
        assert not visit.too_large
        visit.grew()
        visit.grew()
    assert [visit.too_large for visit in visits] == [True] * 17 + [False]  # the last one moved nothing large
    visits[3].leave()
    visits[3].grew()
    assert not any(visit.too_large for visit in visits)
