"""The operator's own port: unsigned, on the loopback, costing the other server nothing, ended with the public one."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator

import httpx
import pytest

from harness.adversaries.scripted.raw_connections import until
from protocol.sharing import Side
from tests.kit.processes import Federation, start_servers
from tests.ports import HOST

SITES = ("hospital-0", "hospital-1", "hospital-2", "hospital-3")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with start_servers(tmp_path_factory.mktemp("operations"), SITES) as running:
        yield running


def counted(federation: Federation, side: Side, name: str) -> float:
    text = httpx.get(federation.servers[side].operations_url + "/metrics", trust_env=False).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_asking_whether_a_server_is_ready_does_not_call_the_other_each_time(federation: Federation) -> None:
    asked = 'moiety_bytes_total{direction="out",kind="healthz"}'
    before = counted(federation, Side.B, asked)
    with httpx.Client(trust_env=False) as client:
        for _ in range(100):
            assert client.get(federation.servers[Side.A].operations_url + "/readyz").status_code == 200
    assert counted(federation, Side.B, asked) - before <= 3 * len('{"status":"ok"}')


def test_open_connections_are_counted(federation: Federation) -> None:
    client = federation.client(SITES[1])
    client.http.get(federation.url(Side.B) + "/healthz")
    assert counted(federation, Side.B, "moiety_connections") >= 1
    client.close()


def test_both_ports_end_together(federation: Federation) -> None:
    server = federation.servers[Side.A]
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) in (0, -signal.SIGTERM)
    for url in (federation.url(Side.A), server.operations_url):
        with socket.socket() as probe:
            assert probe.connect_ex((HOST, int(url.rsplit(":", 1)[1]))) != 0
    assert "Traceback" not in server.log
    federation.start_server(Side.A)
    federation.wait_for(Side.A, "/healthz")
    assert until(lambda: counted(federation, Side.A, "moiety_connections") == 0)
