"""A server answers with bombs, or without an end: both clients refuse, with little memory.

What carries no signature is not read at all; a server that signs is held to what was asked for. Side A's peer may
deviate as well as an agent's server, so the same answers meet ``PeerClient``. The attack is ``answers-without-end``;
here are the bounds of heads, refusals and unsigned bodies, over sockets.
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import stamina
import trustme

from client_agent.net.answers import LongAnswer, UnsignedAnswer
from client_agent.net.envelopes import Body
from client_agent.net.ledger import Ledger
from client_agent.net.server_client import RetryPolicy, ServerClient
from client_agent.net.transport import CountingTransport, tls_context
from protocol.channel.envelope import ANSWER_TYPE, SEALED_TYPE
from protocol.channel.keys import SealingPublicKey, VerifyKey
from protocol.channel.signing import DigestField, sign_answer
from protocol.errors import MoietyError, PeerUnreachable
from protocol.sharing import Side
from servers.monitoring import Metrics, Recent
from servers.peer_client import PeerClient
from tests.integration import hostile_answers as hostile
from tests.integration.hostile_answers import MEGABYTE, Script, hostile_server
from tests.unit.client_agent.enveloped import Handler
from tests.unit.client_agent.federation import ROSTER, keys, operator_keys

LITTLE = 24 * MEGABYTE
"""A bound of Python's memory: an answer of control messages may have 4 MiB, and is held twice while it is joined."""
ATTEMPTS = 4
SUCCESSES = (hostile.bomb, hostile.endless_body, hostile.stated_too_long)
HEADS = (hostile.endless_header, hostile.endless_interim_answers)
ERRORS = (hostile.bomb_in_an_error, hostile.endless_error)


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
def an_agent(url: str, ca: Path) -> Iterator[ServerClient]:
    ledger = Ledger(ca.parent / "ledger.jsonl")
    transport = CountingTransport("server", tls_context(ca), ledger)
    operator = ROSTER.operator_a.model_copy(update={"url": url})
    retry = RetryPolicy(attempts=ATTEMPTS, first_wait_s=0.0, longest_wait_s=0.01)
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


@pytest.mark.parametrize(
    ("scripts", "error", "requests"),
    [(SUCCESSES, UnsignedAnswer, ATTEMPTS), (HEADS, LongAnswer, 1), (ERRORS, UnsignedAnswer, ATTEMPTS)],
    ids=["bodies", "heads", "refusals"],
)
def test_an_agent_reads_no_further_than_an_answer_can_be(
    scripts: tuple[Script, ...], error: type[MoietyError], requests: int, ca: Path, authority: trustme.CA
) -> None:
    for script in scripts:
        with hostile_server(script, authority) as server, an_agent(server.url, ca) as client:
            assert peak_of(lambda: client.view("unit"), error) < LITTLE
            assert server.requests == requests or (scripts is ERRORS and server.requests < requests)
            assert server.sent_bytes < LITTLE


class Endless(httpx.AsyncByteStream):
    """A body without an end; counts what was taken of it."""

    def __init__(self) -> None:
        self.taken_bytes = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.taken_bytes += MEGABYTE
            yield bytes(MEGABYTE)


def test_what_a_server_would_have_the_agent_remember_is_forgotten(ca: Path, authority: trustme.CA) -> None:
    asked: list[httpx.Request] = []

    def cookies() -> Iterator[bytes]:
        many = "".join(f"Set-Cookie: name{i}=value; Max-Age=100000\r\n" for i in range(50))
        yield f"HTTP/1.1 204 No Content\r\n{many}\r\n".encode()

    with hostile_server(cookies, authority) as server, an_agent(server.url, ca) as client:
        made = client._way._request

        def noted(*arguments: Any, **said: Any) -> httpx.Request:
            asked.append(made(*arguments, **said))
            return asked[-1]

        client._way._request = noted  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(UnsignedAnswer):
                client.put_mail("unit", "weights-1", "c1", Body.of(b""))
    assert not any("cookie" in request.headers for request in asked)
    assert len(asked) >= 2


def a_peer(url: str, ca: Path, transport: httpx.AsyncBaseTransport | None = None) -> PeerClient:
    settings = SimpleNamespace(peer_ca=ca, peer_url=url, limits=SimpleNamespace(peer_timeout_s=2.0))
    own = operator_keys(Side.A)
    peer = ROSTER.operator_b
    server: Any = SimpleNamespace(
        history=SimpleNamespace(require_current=lambda: None, compared=True),
        settings=settings,
        keys=own,
        name=own.name,
        metrics=Metrics(),
        clock=time.time,
        recent=Recent(time.time),
        peer=peer,
        verify_keys={peer.key_id: VerifyKey.from_bytes(bytes.fromhex(peer.signing_key))},
        sealing_key_of=lambda name: SealingPublicKey.from_bytes(bytes.fromhex(peer.sealing_key)),
    )
    return PeerClient(server, transport)


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
    with hostile_server(script, authority) as server:
        assert peak_of(lambda: asked(server.url, ca), PeerUnreachable) < LITTLE
        assert server.requests == 1
        assert server.sent_bytes < LITTLE or script is hostile.endless_interim_answers  # bounded by time, not memory


def test_a_masked_sum_without_an_end_stops_at_its_length(ca: Path) -> None:
    taken: list[int] = []
    bodies: list[Endless] = []
    peer = signed_endless_peer(bodies, SEALED_TYPE, DigestField.SEALED_HEAD)
    client = a_peer("https://b.invalid", ca, httpx.MockTransport(peer))

    async def fetch() -> None:
        async for piece in client.stream("/v1/peer/x", "masked_sum", 3 * MEGABYTE):
            taken.append(len(piece))

    with pytest.raises(MoietyError, match="not the one it signed"):
        asyncio.run(fetch())
    assert sum(taken) == 0
    assert bodies[0].taken_bytes == MEGABYTE


def signed_endless_peer(bodies: list[Endless], media_type: str, digest_field: DigestField) -> Handler:
    """The peer signs a head and sends something else without an end."""

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(Endless())
        server = operator_keys(Side.B)
        signed = sign_answer(
            200,
            media_type,
            bytes(32),
            server.signing,
            server.key_id,
            created=1,
            request_signature=request.headers["signature"],
            digest_field=digest_field,
        )
        return httpx.Response(200, headers=list(signed), stream=bodies[-1])

    return answer


def test_an_answer_that_was_made_longer_on_its_way_is_no_refusal(ca: Path) -> None:
    """A refusal would burn the attempt: no signature is over a length, so the peer is asked again."""
    bodies: list[Endless] = []
    peer = signed_endless_peer(bodies, ANSWER_TYPE, DigestField.CONTENT)
    client = a_peer("https://b.invalid", ca, httpx.MockTransport(peer))
    with pytest.raises(PeerUnreachable, match="not over its signature"):
        asyncio.run(client.get("/v1/peer/x", "products"))
    assert bodies[0].taken_bytes < LITTLE
