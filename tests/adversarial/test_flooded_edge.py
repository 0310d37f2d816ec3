"""Strangers without a key against a running server's public port: no memory, no stall, no connection held for long.

Side B is generous with connections and strict with times; side A the other way round, behind a declared proxy.

The attacks are ``connections-...`` and ``requests-...``; here are bounds and memory while they run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest

from harness.attack import signed_client as raw
from harness.attack.signed_client import HEALTH, PROXY, Stranger
from protocol.messages import paths
from protocol.sharing import Side
from tests.kit.processes import Federation, prepare_servers, resident_mb, running_servers, set_limits

SITES = ("hospital-0", "hospital-1", "hospital-2", "hospital-3")
MEGABYTE = 2**20
TIMES = {"header_s": 1.0, "idle_s": 2, "stall_s": 1.0}
SLACK_S = 6.0
ROOMY = {"connections_per_address": 512, "unsigned_per_s": 1000.0, **TIMES}
NARROW = {"connections_per_address": 8, "unsigned_per_s": 1.0}
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = prepare_servers(tmp_path_factory.mktemp("edge"), SITES)
    set_limits(made.servers[Side.B].config, ROOMY)
    set_limits(made.servers[Side.A].config, NARROW, forwarded_by=[f"{PROXY}/32"])
    with running_servers(made):
        yield made


@pytest.fixture
def times(federation: Federation) -> Stranger:
    return Stranger(federation.url(Side.B), federation.ca_file)


@pytest.fixture
def counts(federation: Federation) -> Stranger:
    """Each test comes from addresses of its own, since what one has used up another would miss."""
    return Stranger(federation.url(Side.A), federation.ca_file)


def pid(federation: Federation, side: Side) -> int:
    return federation.servers[side].process.pid


# --- memory -----------------------------------------------------------------------------------------------------------


def test_many_small_headers_take_no_memory(federation: Federation, times: Stranger) -> None:
    before = resident_mb(pid(federation, Side.B))
    with times.dial() as connection:
        raw.pour(connection, itertools.chain([REQUEST], itertools.repeat(b"a: b\r\n" * 10_000, 52 * 18)))
        assert resident_mb(pid(federation, Side.B)) - before < 20
        assert raw.closed_within([connection], SLACK_S) == 1
    assert times.ask(HEALTH)[0] == 200


def test_a_header_value_without_an_end_stalls_nobody(federation: Federation, times: Stranger) -> None:
    """Somebody else is answered between any two pieces of it."""
    before, answered = resident_mb(pid(federation, Side.B)), list[int]()
    with times.dial() as connection, times.dial() as other:

        def pieces() -> Iterator[bytes]:
            yield REQUEST + b"x: "
            for _ in range(32):
                other.sendall(HEALTH)
                answered.append(raw.answer(other)[0])
                yield bytes([97]) * MEGABYTE

        raw.pour(connection, pieces())
        assert raw.closed_within([connection], SLACK_S) == 1
    assert set(answered) == {200}
    assert resident_mb(pid(federation, Side.B)) - before < 20


def test_a_pipeline_of_requests_is_not_queued(federation: Federation, times: Stranger) -> None:
    before = resident_mb(pid(federation, Side.B))
    with ExitStack() as held:
        connections = [held.enter_context(times.dial()) for _ in range(20)]
        for connection in connections:
            raw.pour(connection, [HEALTH * 20_000])
        assert raw.closed_within(connections, SLACK_S) == len(connections)
    assert resident_mb(pid(federation, Side.B)) - before < 40


# --- time -------------------------------------------------------------------------------------------------------------


def test_idle_connections_are_closed_whatever_came_before(times: Stranger) -> None:
    with ExitStack() as held:
        connections = [held.enter_context(times.dial()) for _ in range(20)]
        for connection in connections:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
            assert raw.answer(connection)[0] == 200
            connection.sendall(b"abc")
        assert raw.closed_within(connections, TIMES["idle_s"] + SLACK_S) == len(connections)


# --- addresses --------------------------------------------------------------------------------------------------------


def test_the_operators_own_port_has_a_rate_of_its_own(federation: Federation) -> None:
    url = federation.servers[Side.A].operations_url + "/readyz"
    answers = [httpx.get(url, trust_env=False).status_code for _ in range(40)]
    assert answers == [200] * 40


def test_what_a_site_signed_has_none(federation: Federation) -> None:
    client = federation.client(SITES[1])
    try:
        for _ in range(100):
            client.ok(Side.A, "GET", paths.STUDIES)
    finally:
        client.close()


def _health_for(forwarded_for: str) -> bytes:
    return REQUEST + f"X-Forwarded-For: {forwarded_for}\r\n\r\n".encode()


def test_behind_a_declared_proxy_each_forwarded_address_counts_for_itself(counts: Stranger) -> None:
    with ExitStack() as held:  # the proxy's own connections are not one address's
        for number, connection in enumerate([held.enter_context(counts.dial(PROXY)) for _ in range(20)]):
            connection.sendall(_health_for(f"198.51.100.{100 + number}"))
            assert raw.answer(connection)[0] == 200
        assert any(counts.ask(_health_for("198.51.100.1"), PROXY)[0] == 429 for _ in range(100))
        spoofed = _health_for("198.51.100.3, 198.51.100.1")  # whatever stands before the proxy's own word is anybody's
        assert any(counts.ask(spoofed, PROXY)[0] == 429 for _ in range(5))
        assert counts.ask(_health_for("198.51.100.2"), PROXY)[0] == 200


def test_nobody_else_says_for_whom_it_forwards(counts: Stranger) -> None:
    answers = []
    for number in range(60):
        with suppress(OSError):
            answers.append(counts.ask(_health_for(f"198.51.101.{number}"), "127.0.3.1")[0])
    assert len([one for one in answers if one == 200]) < 40
    assert counts.ask(HEALTH, "127.0.3.2")[0] == 200
