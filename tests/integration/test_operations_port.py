"""The operator's own port: unsigned, on the loopback, costing the other server nothing, ended with the public one."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner

from harness.attack.signed_client import until
from protocol.errors import ConfigurationError, UnknownStudy
from protocol.messages import paths
from protocol.sharing import Side
from servers.cli import app
from servers.settings import load_settings
from servers.status import Status
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


def test_health_metrics_and_api_description(federation: Federation) -> None:
    """On the operator's port; of all this the public one answers health alone."""
    with httpx.Client(trust_env=False) as client:
        for side in Side:
            url = federation.servers[side].operations_url
            assert client.get(url + "/healthz").json() == {"status": "ok"}
            assert client.get(url + "/readyz").json()["ot_session"] == "open"
            assert "moiety_correlations_in_pool" in client.get(url + "/metrics").text
            described = client.get(url + "/openapi.json").json()["paths"]
            assert {paths.VIEW, paths.CONTRIBUTION, paths.PEER_PRODUCTS} <= set(described)
            page = client.get(url + "/docs")
            assert (page.status_code, "/openapi.json" in page.text) == (200, True)
    public = federation.client(SITES[1])
    for side in Side:
        assert public.http.get(federation.url(side) + "/healthz").json() == {"status": "ok"}
        for path in ("/readyz", "/metrics", "/docs", "/redoc", "/openapi.json"):
            refused = public.http.get(federation.url(side) + path)
            assert (refused.status_code, refused.json()["code"]) == (404, "unknown_resource")
    public.close()


def test_open_connections_are_counted(federation: Federation) -> None:
    client = federation.client(SITES[1])
    client.http.get(federation.url(Side.B) + "/healthz")
    assert counted(federation, Side.B, "moiety_connections") >= 1
    client.close()


def test_the_command_shows_the_running_servers_status_and_compares_clocks(federation: Federation) -> None:
    """Both sides over the real port: A by its calls' answers, B by the requests that A signed."""
    for side in Side:
        config = str(federation.servers[side].config)
        said = CliRunner().invoke(app, ["status", "--config", config]).stdout
        assert f"server {side.value} (operator-{side.value}): ready for rounds" in said
        clocks = r"clocks: this one is [+-][01] s off, give or take one; session for products: open"
        assert re.search(clocks, said), said
        assert re.search(r"certificate: ends \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", said)
        whole = CliRunner().invoke(app, ["status", "--config", config, "--json"]).stdout
        assert Status.model_validate_json(whole).ready
        with pytest.raises(UnknownStudy, match="this server has no study 'other'"):
            CliRunner().invoke(app, ["status", "other", "--config", config], catch_exceptions=False)


def test_a_token_of_another_folder_is_refused_with_what_to_look_at(federation: Federation) -> None:
    """A server runs, and another one answers on its port."""
    settings = load_settings(federation.servers[Side.A].config)
    token = settings.data_dir / "status-token"
    held = token.read_text()
    token.write_text("0" * 63)
    try:
        with pytest.raises(ConfigurationError, match=r"/status answers 401: .*'operations_port'"):
            CliRunner().invoke(
                app, ["status", "--config", str(federation.servers[Side.A].config)], catch_exceptions=False
            )
    finally:
        token.write_text(held)


def test_what_alerts_look_at_is_there_before_anything_happens(federation: Federation) -> None:
    for side in Side:
        assert counted(federation, side, "moiety_certificate_expiry_seconds") > time.time() + 86400
        assert counted(federation, side, "moiety_disk_free_bytes") > counted(
            federation, side, "moiety_disk_reserve_bytes"
        )
        text = httpx.get(federation.servers[side].operations_url + "/metrics", trust_env=False).text
        assert 'moiety_refusals_total{code="consistency_check_failed"} 0.0' in text
        for counter, kind in (("moiety_bytes", "end_study"), ("moiety_peer_bytes", "lock")):
            assert f'{counter}_total{{direction="out",kind="{kind}"}} 0.0' in text


def test_a_second_server_on_the_same_folder_says_who_holds_it(federation: Federation) -> None:
    first = federation.servers[Side.A]
    command = [sys.executable, "-m", "servers.cli", "run", "--config", str(first.config)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 2
    assert re.fullmatch(
        rf"error \(configuration\): key 'data_dir': .* is in use by the server of side 'a', process "
        rf"{first.process.pid} on .*; stop that one, or give this one a folder of its own\n",
        second.stderr,
    )
    assert httpx.get(first.operations_url + "/readyz", trust_env=False).status_code == 200


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
