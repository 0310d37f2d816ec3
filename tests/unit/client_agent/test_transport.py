"""Bytes counted at the socket, one request and its answer, and the cap over all connections."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trustme

from client_agent.net.answers import UnsignedAnswer
from client_agent.net.envelopes import SessionKeeper
from client_agent.net.exchange import WAITS_S, TransportFailure
from client_agent.net.ledger import HANDSHAKE, Ledger, read_ledger
from client_agent.net.server_client import RetryPolicy, ServerClient
from client_agent.net.transport import PACED_BYTES, Account, CountedStream, CountingTransport, Pace, Paces, tls_context
from host.network import WebProxy, why_unreachable
from protocol.channel.signing import DigestField
from protocol.errors import ConfigurationError
from protocol.messages.paths import SEALED
from protocol.sharing import Side
from tests.kit.web_proxy import TunnellingProxy, tunnelling_proxy
from tests.unit.client_agent.federation import ROSTER, keys

# --- transport --------------------------------------------------------------------------------------------------------


class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.close_connection = True  # answers nothing at all

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def ca(tmp_path: Path) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return made


@pytest.fixture
def forwarder(ca: trustme.CA) -> Iterator[TunnellingProxy]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    between = TunnellingProxy(to=("127.0.0.1", server.server_address[1]))
    yield between
    between.close()
    server.shutdown()
    server.server_close()
    thread.join(5)


@dataclass
class Connected:
    client: httpx.Client
    transport: CountingTransport
    ledger: Ledger


@pytest.fixture
def connected(tmp_path: Path, ca: trustme.CA) -> Iterator[Connected]:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    transport = CountingTransport("server", tls_context(tmp_path / "ca.pem"), ledger, clock=lambda: 12.0)
    client = httpx.Client(transport=transport, trust_env=False, timeout=10.0)
    yield Connected(client, transport, ledger)
    client.close()
    ledger.close()


@pytest.mark.parametrize("size", [0, 1, 100_000, 3_000_000])
def test_totals_are_the_bytes_at_the_socket(
    size: int, tmp_path: Path, forwarder: TunnellingProxy, connected: Connected
) -> None:
    body = bytes(size)
    for purpose in ("first", "second"):
        request = connected.client.build_request("PUT", f"https://127.0.0.1:{forwarder.port}/x", content=body)
        request.extensions["purpose"] = purpose
        response = connected.client.send(request)
        assert response.content == body
    totals = connected.ledger.totals
    # received: compared while the connection is open; what a server says in closing is not read by anybody
    assert totals.socket_received_bytes == forwarder.bytes_down
    connected.client.close()
    forwarder.join()
    assert connected.ledger.totals == totals
    assert totals.socket_sent_bytes == forwarder.bytes_up
    assert totals.body_sent_bytes == totals.body_received_bytes == 2 * size
    handshake, first, second = read_ledger(tmp_path / "ledger.jsonl")
    assert (handshake.purpose, first.purpose, second.purpose) == (HANDSHAKE, "first", "second")
    assert handshake.socket_sent_bytes > 0
    assert (first.status, first.method, first.path) == (200, "PUT", "/x")
    assert first.tls_version == connected.transport.tls_version == "TLSv1.3"
    assert first.time_s == 12.0


def test_totals_are_the_bytes_at_the_socket_behind_a_proxy_too(
    tmp_path: Path, ca: trustme.CA, forwarder: TunnellingProxy
) -> None:
    """The request for the tunnel and its answer are among them; TLS ends at the server, whose name the proxy learns."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with tunnelling_proxy("ward:secret") as proxy:
        way = WebProxy.parse(proxy.url, "ward:secret")
        transport = CountingTransport("server", tls_context(tmp_path / "ca.pem"), ledger, proxy=way)
        with httpx.Client(transport=transport, trust_env=False, timeout=10.0) as client:
            body = bytes(100_000)
            assert client.put(f"https://127.0.0.1:{forwarder.port}/x", content=body).content == body
            totals = ledger.totals
            assert totals.socket_received_bytes == proxy.bytes_down
        assert proxy.asked == [f"CONNECT 127.0.0.1:{forwarder.port} HTTP/1.1"]
    ledger.close()
    assert ledger.totals.socket_sent_bytes == proxy.bytes_up


def test_a_proxy_that_wants_a_password_is_named(tmp_path: Path, ca: trustme.CA, forwarder: TunnellingProxy) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with tunnelling_proxy("ward:secret") as proxy:
        transport = CountingTransport("s", tls_context(tmp_path / "ca.pem"), ledger, proxy=WebProxy.parse(proxy.url))
        with httpx.Client(transport=transport, trust_env=False) as client, pytest.raises(httpx.ConnectError) as refused:
            client.get(f"https://127.0.0.1:{forwarder.port}/x")
    ledger.close()
    assert "it asks for a user name and password" in why_unreachable(refused.value)


def test_a_streamed_answer_is_counted_as_far_as_it_was_read(forwarder: TunnellingProxy, connected: Connected) -> None:
    body = bytes(2_000_000)
    with connected.client.stream("PUT", f"https://127.0.0.1:{forwarder.port}/x", content=body) as response:
        piece = next(response.iter_raw(1000))
    assert piece == bytes(1000)
    assert 1000 <= connected.ledger.totals.body_received_bytes < 2_000_000


def test_a_broken_exchange_is_in_the_ledger(tmp_path: Path, forwarder: TunnellingProxy, connected: Connected) -> None:
    with pytest.raises(httpx.TransportError):
        connected.client.get(f"https://127.0.0.1:{forwarder.port}/x")
    _, entry = read_ledger(tmp_path / "ledger.jsonl")
    assert (entry.status, entry.body_received_bytes) == (None, 0)
    assert entry.socket_sent_bytes > 0


def test_an_unknown_certificate_is_refused_and_the_handshake_counted(
    tmp_path: Path, forwarder: TunnellingProxy, connected: Connected
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    ledger = Ledger(tmp_path / "other.jsonl")
    transport = CountingTransport("server", tls_context(tmp_path / "other.pem"), ledger)
    with httpx.Client(transport=transport, trust_env=False) as client, pytest.raises(httpx.ConnectError):
        client.get(f"https://127.0.0.1:{forwarder.port}/x")
    ledger.close()
    forwarder.join()
    handshake, request = read_ledger(tmp_path / "other.jsonl")
    assert handshake.purpose == HANDSHAKE
    assert ledger.totals.socket_sent_bytes == forwarder.bytes_up
    assert request.socket_sent_bytes == 0


def test_old_tls_is_refused(tmp_path: Path, ca: trustme.CA) -> None:
    assert tls_context(tmp_path / "ca.pem").minimum_version is ssl.TLSVersion.TLSv1_2
    with pytest.raises(ConfigurationError, match="key 'ca'"):
        tls_context(tmp_path / "missing.pem")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_answer_of_a_server_that_takes_no_more_of_the_request_is_heard(
    scheme: str, tmp_path: Path, ca: trustme.CA, connected: Connected
) -> None:
    """It neither reads on nor closes; under TLS 1.3 its tickets come first, which are no answer."""
    context, heard = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), threading.Event()
    ca.issue_cert("127.0.0.1").configure_cert(context)

    def answer() -> None:
        with listener.accept()[0] as sock:
            one = context.wrap_socket(sock, server_side=True) if scheme == "https" else sock
            one.recv(1000)
            one.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nless")
            heard.wait(60)
            one.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/x"
        response = connected.client.put(url, content=bytes(2**26), timeout=30.0)
        heard.set()
        thread.join(60)
    assert (response.status_code, response.content) == (413, b"less")


def test_tickets_that_come_while_a_request_leaves_begin_no_answer() -> None:
    """Its head has ten minutes from its own first byte, and an upload may take longer."""

    def wants_more(*_: object) -> int:
        raise ssl.SSLWantReadError

    times = iter([0.0, 700.0])
    ours, theirs = socket.socketpair()
    stream = CountedStream(ours, Account(monotonic=lambda: next(times)))
    stream._tls = SimpleNamespace(read=wants_more)  # type: ignore[assignment]
    theirs.sendall(b"ticket")
    assert not stream._hears_early()
    stream.account.received(1)
    stream.close()
    theirs.close()


def test_a_request_that_is_taken_byte_by_byte_is_given_up() -> None:
    times = iter([0.0, 120.0, 122.0, 123.1])
    account = Account(monotonic=lambda: next(times))
    for _ in range(3):
        account.sends()
        account.sent(1024)
    with pytest.raises(httpx.WriteTimeout, match="3072 bytes were taken in 123 s"):
        account.sends()


# --- exchange ---------------------------------------------------------------------------------------------------------

NOW_S = 1.8e9


def client(transport: httpx.BaseTransport, **more: Any) -> ServerClient:
    once = RetryPolicy(attempts=1)
    return ServerClient(Side.A, ROSTER.operator_a, keys("c1"), transport, retry=once, clock=lambda: NOW_S, **more)


def no_session(_: httpx.Request) -> httpx.Response:
    raise AssertionError("asked although it was closed")


@pytest.mark.parametrize("before", [True, False])
def test_connections_that_close_before_or_while_a_request_is_made_end_nobody(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making a request may open a session, which takes a while: then the client's own error came out."""
    made = client(httpx.MockTransport(no_session), in_sessions=True)
    monkeypatch.setattr(SessionKeeper, "session", lambda *_: made.close())
    if before:
        made.close()
    with pytest.raises(TransportFailure, match="the agent is stopping"):
        made.view("unit")


def test_another_error_of_an_open_client_is_not_taken_for_a_stop() -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        client(httpx.MockTransport(broken)).view("unit")


def test_a_request_says_where_it_goes_and_how_long_its_answer_may_take_and_nothing_that_nobody_reads() -> None:
    sent: list[httpx.Request] = []

    def taken(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(302, headers={"location": "https://elsewhere/", "set-cookie": "a=b"})

    made = client(httpx.MockTransport(taken))
    for wait_s in (7.0, 0.0):
        with pytest.raises(UnsignedAnswer):
            made.view("unit", 3, wait_s)
    assert [request.read() != b"" for request in sent] == [True, True], "no redirect is followed"
    address = httpx.URL(ROSTER.operator_a.url or "")
    assert sent[1].headers.raw[0] == (b"Host", address.netloc)
    signed = {b"signature-input", b"signature", DigestField.SEALED_HEAD.value.lower().encode()}
    of_http = {b"host", b"accept-encoding", b"content-type", b"content-length"}
    assert {name.lower() for name, _ in sent[1].headers.raw} == signed | of_http
    assert sent[1].url == address.join(SEALED)
    waits = [WAITS_S["read"] + 7 + 30, WAITS_S["read"]]
    assert [request.extensions["timeout"] for request in sent] == [{**WAITS_S, "read": wait_s} for wait_s in waits]
    assert (sent[1].extensions["purpose"], sent[1].extensions["study"]) == ("view", "unit")


def test_a_client_closes_its_transport_once() -> None:
    closed: list[int] = []

    class Counted(httpx.MockTransport):
        def close(self) -> None:
            closed.append(1)

    made = client(Counted(no_session))
    for _ in range(2):
        made.close()
    assert closed == [1]


# --- pace -------------------------------------------------------------------------------------------------------------

RATE = 100_000
SIZE = 500_000


class Clock:
    """Goes on by what is slept."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.longest_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.longest_s = max(self.longest_s, seconds)


def pace(clock: Clock) -> Pace:
    return Pace(RATE, clock.monotonic, clock.sleep)


def test_so_many_bytes_take_so_long() -> None:
    clock = Clock()
    capped = pace(clock)
    for _ in range(10):
        capped.take(RATE // 10)
    assert clock.now_s == pytest.approx(1.0 - 0.25)  # a burst of a quarter of a second


def test_a_quiet_hour_is_not_saved_up() -> None:
    clock = Clock()
    capped = pace(clock)
    clock.now_s = 3600.0
    capped.take(2 * RATE)
    assert clock.now_s == pytest.approx(3600.0 + 2.0 - 0.25)


@pytest.mark.parametrize("upwards", [True, False])
def test_a_capped_socket_moves_every_byte_at_the_pace(*, upwards: bool) -> None:
    clock = Clock()
    paces = Paces(pace(clock), None) if upwards else Paces(None, pace(clock))
    ours, theirs = socket.socketpair()
    account, taken = Account(), bytearray()
    stream = CountedStream(ours, account, paces)

    def drain() -> None:
        while data := theirs.recv(2**16):
            taken.extend(data)

    def fill() -> None:
        theirs.sendall(bytes(SIZE))
        theirs.close()

    other = threading.Thread(target=drain if upwards else fill)
    other.start()
    if upwards:
        stream.write(bytes(SIZE), within_s=30.0)
    else:
        while data := stream.read(2**18, within_s=30.0):
            taken.extend(data)
    stream.close()
    other.join(30.0)
    theirs.close()
    assert len(taken) == SIZE == (account.sent_bytes if upwards else account.received_bytes)
    assert clock.now_s == pytest.approx(SIZE / RATE - 0.25)
    assert clock.longest_s <= PACED_BYTES / RATE + 1e-9  # a stop of the agent waits no longer
