"""The way through a proxy, servers out of reach, and calls at the same time."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trustme

from client_agent.net.ledger import Ledger
from client_agent.net.server_client import RetryPolicy, ServerClient
from client_agent.net.transport import CountingTransport, tls_context
from harness.federation.clocks import VirtualClock
from host.clock import SYSTEM, at_once
from host.network import ProxyRefused, WebProxy, open_tunnel, why_unreachable
from protocol.errors import ConfigurationError, MoietyError, PeerUnreachable
from protocol.sharing import Side
from servers.peer_client import PeerClient
from servers.settings import Limits
from tests.kit.certificates import answering, shown
from tests.kit.web_proxy import tunnelling_proxy
from tests.ports import HOST, more_free_ports
from tests.unit.client_agent.federation import ROSTER, keys

# --- web proxy --------------------------------------------------------------------------------------------------------

SECRET = "ward:s3cret"


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [("http://proxy", "proxy", 3128), ("http://10.0.0.1:8080/", "10.0.0.1", 8080), ("http://[::1]:1", "::1", 1)],
)
def test_a_proxy_is_a_host_and_a_port(url: str, host: str, port: int) -> None:
    found = WebProxy.parse(url, SECRET)
    assert (found.host, found.port, found.credentials) == (host, port, SECRET)
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    "url", ["proxy:3128", "https://proxy", "socks5://proxy", "http://", "http://p/x", "http://p?x", "http://p:port"]
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="key 'proxy': it is written http://HOST:PORT"):
        WebProxy.parse(url)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="name it as 'proxy_credentials'") as refused:
        WebProxy.parse("http://ward:s3cret@proxy")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("credentials", ["ward", "ward:a\nHost: other", "ward:\x7f"])
def test_credentials_are_one_line(credentials: str) -> None:
    with pytest.raises(ConfigurationError, match="one line, user:password"):
        WebProxy.parse("http://proxy", credentials)


def test_a_tunnel_carries_what_is_said(server: tuple[str, int]) -> None:
    counted = [0, 0]

    def count(sent: int, received: int) -> None:
        counted[0] += sent
        counted[1] += received

    with tunnelling_proxy(SECRET) as proxy:
        sock = open_tunnel(WebProxy.parse(proxy.url, SECRET), server, 30.0, count)
        with sock:
            sock.sendall(b"hello")
            assert sock.recv(100) == b"hello"
            assert proxy.asked == [f"CONNECT {server[0]}:{server[1]} HTTP/1.1"]
            assert (counted[0] + 5, counted[1] + 5) == (proxy.bytes_up, proxy.bytes_down)


@pytest.mark.parametrize(
    ("credentials", "answer", "said"),
    [
        (None, None, r"407 Proxy Authentication Required\): it asks for a user name and password"),
        ("ward:wrong", None, "it asks for a user name and password, or those in 'proxy_credentials' are wrong"),
        (SECRET, b"HTTP/1.1 403 Forbidden\r\n\r\n", "ask your network's people to let this machine reach that host"),
        (SECRET, b"HTTP/1.0 502 \x1b[31mBad\r\nX: y\r\n\r\n", "502 \ufffd\\[31mBad.: it cannot reach the server"),
        (SECRET, b"HTTP/1.1 418 Teapot\r\n\r\n", "418 Teapot.: ask your network's people$"),
        (SECRET, b"SSH-2.0-OpenSSH\r\n\r\n", "does not answer as an HTTP proxy: is that its address and port"),
        (SECRET, b"", "closed the connection without an answer"),
        (SECRET, b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 5000, "too long for one"),
    ],
)
def test_a_refusal_says_who_has_to_do_what(
    credentials: str | None, answer: bytes | None, said: str, server: tuple[str, int]
) -> None:
    with tunnelling_proxy(SECRET, answer) as proxy, pytest.raises(ProxyRefused, match=said) as refused:
        open_tunnel(WebProxy.parse(proxy.url, credentials), server, 30.0)
    assert why_unreachable(refused.value) == str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_proxy_that_says_nothing_is_not_waited_for_longer_than_told(server: tuple[str, int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = WebProxy("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(ProxyRefused, match="did not answer in time"):
            open_tunnel(proxy, server, 0.2)
    with pytest.raises(ProxyRefused, match="cannot be reached: "):
        open_tunnel(proxy, server, 0.2)


@pytest.fixture
def server():
    """Says back what it hears."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=_echo, args=(client,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _echo(client: socket.socket) -> None:
    with client, suppress(OSError):
        while piece := client.recv(1000):
            client.sendall(piece)


# --- unreachable ------------------------------------------------------------------------------------------------------

CA, OTHER_CA = trustme.CA(), trustme.CA()


def only_old(folder: Path) -> ssl.SSLContext:
    context = shown(folder, CA)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def asked_by_an_agent(url: str, ca: Path, minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> str:
    operator = ROSTER.operator_a.model_copy(update={"url": url})
    ledger = Ledger(ca.with_name("ledger.jsonl"))
    context = tls_context(ca)
    context.minimum_version = minimum
    transport = CountingTransport("op-a", context, ledger)
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
        (lambda folder: shown(folder, CA, ends_in_days=-1.0), "has expired: its operator must renew it"),
        (lambda folder: shown(folder, OTHER_CA), "by a CA that the CA file does not have"),
        (lambda folder: shown(folder, CA, "other.example"), "for another IP address than the roster's"),
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
    with answering(made(tmp_path)) as url:
        detail = asked(url, ca)
    assert said in detail
    assert "ConnectError" not in detail


@pytest.mark.parametrize("asked", [asked_by_an_agent, asked_by_the_peer])
def test_nobody_there_and_no_such_name(asked: Callable[[str, Path], str], ca: Path) -> None:
    (port,) = more_free_ports(1)
    assert "nobody listens there" in asked(f"https://{HOST}:{port}", ca)
    assert "host name does not resolve" in asked("https://no-such-host.invalid:8443", ca)


def test_a_name_that_is_not_the_certificates(tmp_path: Path, ca: Path) -> None:
    with answering(shown(tmp_path, CA, "other.example")) as url:
        assert "for another host name than the roster's" in asked_by_an_agent(url.replace(HOST, "localhost"), ca)


def test_a_server_of_old_tls(tmp_path: Path, ca: Path) -> None:
    with answering(only_old(tmp_path)) as url:
        refused = asked_by_an_agent(url, ca, ssl.TLSVersion.TLSv1_3)
        assert "no TLS version that this machine accepts" in refused


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


# --- at once ----------------------------------------------------------------------------------------------------------


def test_calls_run_at_the_same_time_and_each_gives_its_result() -> None:
    together = threading.Barrier(2)
    found = at_once({name: lambda: together.wait(30) for name in "ab"}, SYSTEM, "test")
    assert sorted(found) == ["a", "b"]
    assert sorted(found.values()) == [0, 1]  # neither came through the barrier alone


def test_the_first_error_in_order_is_raised_after_all_have_ended() -> None:
    ended: list[str] = []
    last = threading.Event()

    def fails(name: str) -> None:
        if name == "a":
            assert last.wait(30)  # the first in order is the last in time
        ended.append(name)
        last.set()
        raise ValueError(name)

    with pytest.raises(ValueError, match="a"):
        at_once({"a": lambda: fails("a"), "b": lambda: fails("b")}, SYSTEM, "test")
    assert ended == ["b", "a"]


def test_time_passes_on_the_callers_clock_while_a_call_waits_and_another_has_ended() -> None:
    """A pool's idle thread, or a caller that joins, would count as one that works, and time would stand still."""
    clock, nobody = VirtualClock(), threading.Event()
    passed: list[dict[str, bool | None]] = []
    calls = {"at once": lambda: None, "slow": lambda: clock.wait(nobody, 50.0)}
    caller = threading.Thread(target=lambda: passed.append(at_once(calls, clock, "test")))
    caller.start()
    with clock.outside():
        while caller.is_alive():
            if clock.everybody_waits():
                clock.pass_time(None)  # False where the caller has just ended
    assert passed == [{"at once": None, "slow": False}]
    assert clock.monotonic() == 50.0
