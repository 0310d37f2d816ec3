"""deploy/caddy/Caddyfile in front of two servers that run: a study goes through it, and what the servers limit in
strangers stays limited for each of them. Needs Debian's package caddy (2.6 or later); no container engine.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from client_agent.site.events import RoundEnd
from harness.adversaries import raw_connections as raw
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.memory.learners import light_learner, light_sites, light_study
from harness.federation.processes import FederationSpec
from protocol.messages.control import RuleName, RuleSpec
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.deploy.containers import ASKED, ROOT, wait_until
from tests.documents.walk import Walk
from tests.integration.agents import finished, rounds_of
from tests.kit.processes import Federation
from tests.ports import free_ports, more_free_ports

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

SITES = ("requester", "c1", "c2", "c3")
HOST = "127.0.0.1"
LIMITS = {"stall_s": 1.0, "least_bytes_per_s": 2048, "unsigned_per_s": 1.0}
SLOW = b"POST /v1/sealed HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n" + bytes(65536)
_SLOW_ONES = 12


@dataclass(frozen=True)
class Fronted:
    """Two servers and the root of Caddy's own CA, which sites and servers trust."""

    federation: Federation
    root: Path

    def ask(self, side: Side, source: str, request: bytes, within_s: float = 20.0) -> int:
        """The status that a stranger from that address of this machine gets; 0 for a closed connection."""
        with self.connect(side, source, within_s) as connection:
            connection.sendall(request)
            answer = connection.recv(4096)
        return int(answer.split(b" ", 2)[1]) if answer else 0

    @contextmanager
    def connect(self, side: Side, source: str, within_s: float = 20.0) -> Iterator[ssl.SSLSocket]:
        port = int(self.federation.url(side).rsplit(":", 1)[1])
        context = ssl.create_default_context(cafile=str(self.root))
        plain = socket.create_connection((HOST, port), within_s, source_address=(source, 0))
        with plain, context.wrap_socket(plain, server_hostname=HOST) as connection:
            connection.settimeout(within_s)
            yield connection


@pytest.fixture(scope="module")
def fronted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    if os.environ.get(ASKED) != "1":
        pytest.skip(f"for 'make test-deploy' (or set {ASKED}=1)")
    if shutil.which("caddy") is None:
        pytest.skip("NOT TESTED: no caddy here (Debian's package caddy, 2.6 or later)")
    folder = tmp_path_factory.mktemp("caddy")
    spec = FederationSpec("caddy", SITES[0], light_sites(SITES, SitePolicy(least_isolation=0.0)), ports=free_ports())
    federation = Federation(folder / "federation", spec, light_learner)
    behind = dict(zip(Side, more_free_ports(2), strict=True))
    with ExitStack() as stack:
        data = {side: folder / f"caddy-{side.value}" for side in Side}
        for side in Side:
            settle(federation, side, behind[side])
            stack.callback(stopped, run_caddy(federation, side, behind[side], data[side]))
        stack.callback(federation.stop)
        roots = [data[side] / "caddy" / "pki" / "authorities" / "local" / "root.crt" for side in Side]
        wait_until(lambda: all(root.exists() for root in roots), "both of Caddy's CAs", 30)
        federation.ca_file.write_text("".join(root.read_text() for root in roots))
        federation.start_servers()
        federation.start_agents()
        yield Fronted(federation, federation.ca_file)


def settle(federation: Federation, side: Side, port: int) -> None:
    """Behind Caddy: another port than sites call, and a certificate of its own, which Caddy alone trusts."""
    place = federation.folder / OPERATOR_NAMES[side]
    own = {"a.example.org": HOST, "DNS:": "IP:", "operator-a/": f"{place}/"}
    for begins in ("openssl req", "chmod 600 operator-a/tls-key.pem"):
        line = Walk(("docs/operating.md",)).line(begins, own)
        subprocess.run(("bash", "-ec", line), check=True, capture_output=True, timeout=60)
    config = federation.config(OPERATOR_NAMES[side])
    before = int(federation.url(side).rsplit(":", 1)[1])
    config.write_text(config.read_text().replace(f"port = {before}\n", f"port = {port}\n", 1))
    raw.set_limits(config, LIMITS, forwarded_by=[f"{HOST}/32"])


def run_caddy(federation: Federation, side: Side, port: int, data: Path) -> subprocess.Popen[bytes]:
    url = federation.url(side)
    certificate = federation.folder / OPERATOR_NAMES[side] / "tls-certificate.pem"
    told = {
        "MOIETY_URL": url,
        "MOIETY_NAME": HOST,
        "MOIETY_UPSTREAM": f"{HOST}:{port}",
        "MOIETY_UPSTREAM_CA": str(certificate),
        "MOIETY_ISSUER": "internal",
        "XDG_DATA_HOME": str(data),
        "XDG_CONFIG_HOME": str(data),
    }
    command = ("caddy", "run", "--adapter", "caddyfile", "--config", str(ROOT / "deploy" / "caddy" / "Caddyfile"))
    with (federation.folder / f"caddy-{side.value}.log").open("wb") as log:
        return subprocess.Popen(command, env=os.environ | told, stdout=log, stderr=log)


def stopped(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(20)


def test_a_study_goes_through_caddy(fronted: Fronted) -> None:
    federation = fronted.federation
    study = light_study(federation.parties, "fronted", RuleSpec(name=RuleName.FEDAVG), rounds=3)
    federation.hand_in(study)
    wait_until(finished(federation, "fronted", *SITES), "the study's end", 120)
    assert [record.state for record in rounds_of(federation, SITES[0], "fronted")] == [RoundEnd.RELEASED] * 3


def test_each_stranger_behind_caddy_is_limited_by_itself(fronted: Fronted) -> None:
    """Whatever it says of where it comes from."""
    said = iter(range(200))

    def asked(source: str) -> int:
        forged = f"X-Forwarded-For: 10.0.0.{next(said)}".encode()
        return fronted.ask(Side.A, source, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + forged + b"\r\n\r\n")

    found = [asked("127.0.0.7") for _ in range(30)]
    assert found[0] == 200
    assert found[-1] == 429
    assert asked("127.0.0.8") == 200


def test_strangers_bodies_that_do_not_come_hold_nothing_of_the_server(fronted: Fronted) -> None:
    """It has answered at once, or gives up after stall_s, and nobody else waits meanwhile. Caddy may hold a stranger's
    own connection for longer: it hands an answer on only once the body has come, or read_body is over.
    """
    federation, name = fronted.federation, OPERATOR_NAMES[Side.B]
    files = Path(f"/proc/{federation.running[name].pid}/fd")
    before, refused = len(list(files.iterdir())), refusals(federation)
    with ExitStack() as stack:
        for last in range(_SLOW_ONES):
            stack.enter_context(fronted.connect(Side.B, f"127.0.0.{20 + last}")).sendall(SLOW)
        wait_until(lambda: refusals(federation) >= refused + _SLOW_ONES, "all are refused", 30)
        assert fronted.ask(Side.B, "127.0.0.10", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") == 200
        wait_until(lambda: len(list(files.iterdir())) < before + _SLOW_ONES, "the server has let go of them", 30)


def refusals(federation: Federation) -> int:
    log = federation.folder / OPERATOR_NAMES[Side.B] / "process.log"
    return log.read_text(errors="replace").count('"/v1/sealed"')
