"""Why a server is out of reach, in words, at the agent and between the servers: real sockets, real certificates."""

from __future__ import annotations

import asyncio
import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trustme

from client_agent.network.ledger import Ledger
from client_agent.network.server_client import RetryPolicy, ServerClient
from client_agent.network.transport import CountingTransport, tls_context
from host.network import why_unreachable
from protocol.errors import MoietyError, PeerUnreachable
from protocol.sharing import Side
from servers.http.peer_client import PeerClient
from servers.settings import Limits
from tests.kit.certificates import write_certificate
from tests.ports import HOST, more_free_ports
from tests.unit.client_agent.federation import ROSTER, keys

CA, OTHER_CA = trustme.CA(), trustme.CA()


@contextmanager
def listening(context: ssl.SSLContext | None) -> Iterator[int]:
    """A server that answers nothing of use, under TLS or plain."""
    server = http.server.ThreadingHTTPServer((HOST, 0), http.server.BaseHTTPRequestHandler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def under(folder: Path, authority: trustme.CA, host: str = HOST, ends_in_days: float = 9.0) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*write_certificate(folder, authority, host, ends_in_days=ends_in_days))
    return context


def only_old(folder: Path) -> ssl.SSLContext:
    context = under(folder, CA)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def asked_by_an_agent(url: str, ca: Path, minimum: str = "1.2") -> str:
    operator = ROSTER.operator_a.model_copy(update={"url": url})
    ledger = Ledger(ca.with_name("ledger.jsonl"))
    transport = CountingTransport("op-a", tls_context(ca, minimum), ledger)
    client = ServerClient(Side.A, operator, keys("c1"), transport, retry=RetryPolicy(attempts=1))
    try:
        with pytest.raises(MoietyError) as caught:
            client.studies()
    finally:
        client.close()
        ledger.close()
    return caught.value.detail


def asked_by_the_peer(url: str, ca: Path) -> str:
    settings = SimpleNamespace(peer_url=url, peer_ca=ca, limits=Limits(peer_timeout_s=30.0))
    server: Any = SimpleNamespace(settings=settings)

    async def ask() -> str:
        client = PeerClient(server)
        try:
            with pytest.raises(PeerUnreachable) as caught:
                await client.reachable()
        finally:
            await client.close()
        return caught.value.detail

    return asyncio.run(ask())


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    CA.cert_pem.write_to_path(str(path))
    return path


@pytest.mark.parametrize("asked", [asked_by_an_agent, asked_by_the_peer])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda folder: under(folder, CA, ends_in_days=-1.0), "has expired: its operator must renew it"),
        (lambda folder: under(folder, OTHER_CA), "by a CA that the CA file does not have"),
        (lambda folder: under(folder, CA, "other.example"), "for another IP address than the roster's"),
        (lambda folder: None, "does not speak TLS"),
    ],
    ids=["expired", "another CA", "another name", "no TLS"],
)
def test_tls_failures_say_their_reason(
    made: Callable[[Path], ssl.SSLContext | None],
    said: str,
    asked: Callable[[str, Path], str],
    tmp_path: Path,
    ca: Path,
) -> None:
    with listening(made(tmp_path)) as port:
        detail = asked(f"https://{HOST}:{port}", ca)
    assert said in detail
    assert "ConnectError" not in detail


@pytest.mark.parametrize("asked", [asked_by_an_agent, asked_by_the_peer])
def test_nobody_there_and_no_such_name(asked: Callable[[str, Path], str], ca: Path) -> None:
    (port,) = more_free_ports(1)
    assert "nobody listens there" in asked(f"https://{HOST}:{port}", ca)
    assert "host name does not resolve" in asked("https://no-such-host.invalid:8443", ca)


def test_a_name_that_is_not_the_certificates(tmp_path: Path, ca: Path) -> None:
    with listening(under(tmp_path, CA, "other.example")) as port:
        assert "for another host name than the roster's" in asked_by_an_agent(f"https://localhost:{port}", ca)


def test_a_server_of_old_tls(tmp_path: Path, ca: Path) -> None:
    with listening(only_old(tmp_path)) as port:
        assert "no TLS version that this machine accepts" in asked_by_an_agent(f"https://{HOST}:{port}", ca, "1.3")


def test_what_nobody_expects_keeps_the_librarys_words() -> None:
    assert why_unreachable(httpx.ReadError("cut off")) == "ReadError: cut off"
    assert why_unreachable(httpx.ReadError("")) == "ReadError"
    assert "TLS failed" in why_unreachable(ssl.SSLError(1, "[SSL: ODD] odd"))
    assert "closed during the TLS handshake" in why_unreachable(ssl.SSLEOFError(8, "EOF"))
    assert "in time" in why_unreachable(TimeoutError())
    both = ExceptionGroup("all attempts", [ConnectionResetError(104, "reset"), socket.gaierror(-2, "unknown")])
    assert "cut on the way" in why_unreachable(both)


def test_a_wait_of_tls_is_not_the_reason_that_nothing_came() -> None:
    """As it is where a socket's time is over while TLS waits for the rest of a record."""
    late = TimeoutError("timed out")
    late.__context__ = ssl.SSLWantReadError(2, "The operation did not complete (read)")
    assert "nothing answers in time" in why_unreachable(late)
