"""A server answers with bombs, or without an end: both clients refuse, with little memory, and do not ask again.

Side A's peer may deviate as well as an agent's server, so the same answers meet ``PeerClient``.
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stamina
import trustme

from client_agent.ledger import Ledger
from client_agent.server_client import RetryPolicy, ServerClient
from client_agent.transport import CountingTransport, tls_context
from protocol.errors import MalformedMessage, MoietyError, TooLarge, Unavailable
from protocol.sharing import Side
from servers.metrics import Metrics
from servers.peer_client import PeerClient
from tests.adversarial import hostile_answers as hostile
from tests.adversarial.hostile_answers import MEGABYTE, Script, hostile_server
from tests.unit.client_agent.federation import ROSTER, keys, operator_keys

LITTLE = 24 * MEGABYTE
"""Of Python's memory: an answer of control messages may have 4 MiB, and is held twice while it is joined."""
SUCCESSES = {
    hostile.bomb: MalformedMessage,
    hostile.endless_body: TooLarge,
    hostile.stated_too_long: TooLarge,
}
HEADS = (hostile.endless_header, hostile.endless_interim_answers)
ERRORS = {hostile.bomb_in_an_error: MoietyError, hostile.endless_error: Unavailable}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    stamina.instrumentation.set_on_retry_hooks(())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca(tmp_path: Path, authority: trustme.CA) -> Path:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return tmp_path / "ca.pem"


@contextmanager
def an_agent(url: str, ca: Path, attempts: int = 4) -> Iterator[ServerClient]:
    ledger = Ledger(ca.parent / "ledger.jsonl")
    transport = CountingTransport("server", tls_context(ca), ledger)
    operator = ROSTER.operator_a.model_copy(update={"url": url})
    retry = RetryPolicy(attempts=attempts, first_wait_s=0.0, longest_wait_s=0.01)
    client = ServerClient(Side.A, operator, keys("c1"), transport, retry=retry)
    try:
        yield client
    finally:
        client.close()
        ledger.close()


def peak_of(call: Callable[[], object], error: type[MoietyError]) -> int:
    """Python's memory at its highest while the call is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(error):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("script", SUCCESSES)
def test_an_agent_does_not_take_in_what_a_server_answers_without_measure(
    script: Script, ca: Path, authority: trustme.CA
) -> None:
    with hostile_server(script, authority) as server, an_agent(server.url, ca) as client:
        assert peak_of(lambda: client.view("unit"), SUCCESSES[script]) < LITTLE
        assert server.requests == 1
        assert server.sent_bytes < LITTLE


@pytest.mark.parametrize("script", HEADS)
def test_an_agent_does_not_wait_for_the_end_of_a_head(script: Script, ca: Path, authority: trustme.CA) -> None:
    with hostile_server(script, authority) as server, an_agent(server.url, ca) as client:
        assert peak_of(lambda: client.view("unit"), TooLarge) < LITTLE
        assert server.requests == 1
        assert server.sent_bytes < LITTLE


@pytest.mark.parametrize("script", ERRORS)
def test_an_agent_reads_a_refusal_no_further_than_one_can_be(script: Script, ca: Path, authority: trustme.CA) -> None:
    with hostile_server(script, authority) as server, an_agent(server.url, ca, attempts=2) as client:
        assert peak_of(lambda: client.view("unit"), ERRORS[script]) < LITTLE
        assert server.requests <= 2
        assert server.sent_bytes < LITTLE


def test_a_letter_and_a_file_have_bounds_of_their_own(ca: Path, authority: trustme.CA) -> None:
    with hostile_server(hostile.endless_body, authority) as server, an_agent(server.url, ca) as client:
        into = ca.parent / "checkpoint"
        with pytest.raises(TooLarge, match="50000 bytes"):
            client.get_mail("unit", "refusal", "r0", "c1", 50_000)
        with pytest.raises(TooLarge, match="4000 bytes"):
            client.fetch_mail("unit", "checkpoint-0", "every-site", "r0", into, 4000)
        with pytest.raises(TooLarge, match="9000 bytes"):
            client.opening("unit", 1, 1, 9000)
        with pytest.raises(TooLarge, match="7000 bytes"):
            client.fetch_output("unit", 1, list, 7000)
        assert not list(ca.parent.glob("checkpoint*"))


def test_what_a_server_would_have_the_agent_remember_is_forgotten(ca: Path, authority: trustme.CA) -> None:
    def cookies() -> Iterator[bytes]:
        many = "".join(f"Set-Cookie: name{i}=value; Max-Age=100000\r\n" for i in range(50))
        yield f"HTTP/1.1 204 No Content\r\n{many}\r\n".encode()

    with hostile_server(cookies, authority) as server, an_agent(server.url, ca) as client:
        client.put_mail("unit", "weights-1", "c1", _nothing())
        assert len(client._http.cookies) == 0


def _nothing() -> Any:
    from client_agent.server_client import Body

    return Body.of(b"")


def a_peer(url: str, ca: Path) -> PeerClient:
    settings = SimpleNamespace(peer_ca=ca, peer_url=url, limits=SimpleNamespace(peer_timeout_s=2.0))
    own = operator_keys(Side.A)
    server: Any = SimpleNamespace(settings=settings, keys=own, name=own.name, metrics=Metrics(), clock=time.time)
    return PeerClient(server)


def asked(url: str, ca: Path) -> None:
    async def ask() -> None:
        client = a_peer(url, ca)
        try:
            await client.get("/v1/peer/x", "collected")
        finally:
            await client.close()

    asyncio.run(ask())


@pytest.mark.parametrize("script", [*SUCCESSES, *HEADS, *ERRORS])
def test_side_a_takes_no_more_from_its_peer_than_it_asked_for(script: Script, ca: Path, authority: trustme.CA) -> None:
    named = SUCCESSES.get(script, MoietyError)
    with hostile_server(script, authority) as server:
        assert peak_of(lambda: asked(server.url, ca), named) < LITTLE
        assert server.requests == 1
        assert server.sent_bytes < LITTLE or script is hostile.endless_interim_answers  # bounded by time, not memory


def test_a_masked_sum_without_an_end_stops_at_its_length(ca: Path, authority: trustme.CA) -> None:
    taken: list[int] = []

    async def fetch(url: str) -> None:
        client = a_peer(url, ca)
        try:
            async for piece in client.stream("/v1/peer/x", "masked_sum", 3 * MEGABYTE):
                taken.append(len(piece))
        finally:
            await client.close()

    with hostile_server(hostile.endless_body, authority) as server:
        with pytest.raises(TooLarge, match="3145728 bytes"):
            asyncio.run(fetch(server.url))
        assert sum(taken) <= 3 * MEGABYTE
