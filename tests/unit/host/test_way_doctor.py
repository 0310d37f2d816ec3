"""The way to a server and the machine, looked at: every failure has its next step."""

from __future__ import annotations

import http.server
import ssl
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest
import trustme

from host.doctor import (
    Finding,
    Report,
    Verdict,
    Way,
    failed,
    lines,
    look_at_disk,
    look_at_memory,
    look_at_way,
    ok,
    show,
    warning,
)
from host.network import WebProxy, require_apart
from protocol.errors import ConfigurationError
from tests.kit.certificates import answering, shown
from tests.kit.web_proxy import tunnelling_proxy

HOST = "127.0.0.1"
CA = trustme.CA()


class Healthy(http.server.BaseHTTPRequestHandler):
    """As a server's public port answers; ``Date`` is the machine's."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


class Other(Healthy):
    status = 404


class Sometime(Healthy):
    """A server whose ``Date`` is always the same second."""

    said_s = 0

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(self.said_s, usegmt=True)


class Timeless(Healthy):
    def date_time_string(self, timestamp: float | None = None) -> str:
        return "no time"


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    CA.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return tmp_path / "ca.pem"


@pytest.fixture
def well(tmp_path: Path) -> ssl.SSLContext:
    return shown(tmp_path, CA)


def looked(url: str, ca: Path, proxy: WebProxy | None = None, clock: Callable[[], float] = time.time) -> list[Finding]:
    return list(look_at_way(Way("server a", url, ca, proxy, 30.0), clock))


def test_a_server_that_is_well(ca: Path, well: ssl.SSLContext) -> None:
    with answering(well, Healthy) as url:
        found = looked(url, ca)
    assert [one.verdict for one in found] == [Verdict.OK] * 5
    assert [one.check.removeprefix("server a: ").split(" to ")[0] for one in found] == [
        "name",
        "connection",
        "TLS",
        "answer",
        "clock",
    ]
    assert "TLSv1.3, certificate by" in found[2].found


def test_a_proxy_that_opens_tls_is_seen_by_its_certificate(ca: Path, tmp_path: Path) -> None:
    other = trustme.CA(organization_name="Hospital Gateway")
    with answering(shown(tmp_path, other), Healthy) as url:
        *_, last = looked(url, ca)
    assert last.verdict is Verdict.FAILED
    assert "ask your network's people whether a proxy opens TLS on the way" in last.found
    assert "Shown is a certificate by" in last.found
    assert "Hospital Gateway" in last.found


@pytest.mark.parametrize(
    ("ahead_s", "verdict"), [(0, Verdict.OK), (3.5, Verdict.WARNING), (600, Verdict.FAILED), (-600, Verdict.FAILED)]
)
def test_clocks_are_compared(
    ahead_s: float,
    verdict: Verdict,
    ca: Path,
    well: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At half past the second that the server says, which is what its whole seconds are taken for."""
    monkeypatch.setattr(Sometime, "said_s", int(time.time()))
    with answering(well, Sometime) as url:
        *_, clock = looked(url, ca, clock=lambda: Sometime.said_s + 0.5 + ahead_s)
    assert (clock.check, clock.verdict) == ("server a: clock", verdict)
    assert bool(clock.fix) is (verdict is not Verdict.OK)
    if abs(ahead_s) == 600:
        assert f"is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the server's" in clock.found


def test_a_server_without_a_time_is_no_failure(ca: Path, well: ssl.SSLContext) -> None:
    with answering(well, Timeless) as url:
        *_, clock = looked(url, ca)
    assert (clock.verdict, clock.fix) == (Verdict.WARNING, "compare both clocks by hand")


def test_a_certificate_that_ends_soon_is_a_warning(ca: Path, tmp_path: Path) -> None:
    with answering(shown(tmp_path, CA, ends_in_days=3), Healthy) as url:
        (tls,) = [one for one in looked(url, ca) if one.check.endswith("TLS")]
    assert tls.verdict is Verdict.WARNING
    assert tls.fix.startswith("it ends in 3.0 days")


def test_another_server_answers(ca: Path, well: ssl.SSLContext) -> None:
    with answering(well, Other) as url:
        *_, last = looked(url, ca)
    assert (last.verdict, last.found) == (Verdict.FAILED, "404 for /healthz")


def test_steps_that_fail_end_the_way(ca: Path, well: ssl.SSLContext, tmp_path: Path) -> None:
    (nowhere,) = looked("https://no-such-host.invalid", ca)
    assert "does not resolve" in nowhere.found
    *_, nobody = looked(f"https://{HOST}:1", ca)
    assert "nobody listens there" in nobody.found
    with answering(None, Healthy) as url:
        *_, plain = looked(url, ca)
    assert "does not speak TLS" in plain.found
    (tmp_path / "empty.pem").write_text("")
    with answering(well, Healthy) as url:
        *_, trustless = looked(url, tmp_path / "empty.pem")
    assert "holds no CA certificates in PEM" in trustless.found


def test_by_a_proxy(ca: Path, well: ssl.SSLContext) -> None:
    with answering(well, Healthy) as url, tunnelling_proxy("ward:secret") as proxy:
        found = looked(url, ca, WebProxy.parse(proxy.url, "ward:secret"))
        assert {one.verdict for one in found} == {Verdict.OK}
        *_, refused = looked(url, ca, WebProxy.parse(proxy.url))
    assert "it asks for a user name and password" in refused.found


def test_room_on_the_machine(tmp_path: Path) -> None:
    assert look_at_disk("disk", tmp_path / "later" / "on", 1, 2).verdict is Verdict.OK
    assert look_at_disk("disk", tmp_path, 1, 2**62).verdict is Verdict.WARNING
    full = look_at_disk("disk", tmp_path, 2**62, 2**62)
    assert (full.verdict, "free some" in full.fix) == (Verdict.FAILED, True)
    meminfo = tmp_path / "meminfo"
    for text, verdict in (("MemAvailable: 9000000 kB\n", Verdict.OK), ("MemAvailable: 9 kB\n", Verdict.WARNING)):
        meminfo.write_text(text)
        assert look_at_memory(2**30, meminfo).verdict is verdict
    meminfo.write_text("MemTotal: 9 kB\n")
    assert "does not say" in look_at_memory(1, meminfo).found


def test_a_report_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    findings = (ok("a", "well"), warning("b", "soon", "renew"), failed("c", "\x1b[2Jgone", "fetch"))
    report = Report(of="site", findings=findings)
    assert list(lines(findings))[:3] == ["ok   a: well", "WARN b: soon", "     -> renew"]
    assert not show(report, json_output=False)
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert said.endswith("site: 1 of 3 failed\n")
    assert show(Report(of="site", findings=findings[:2]), json_output=True)
    assert Report.model_validate_json(capsys.readouterr().out).findings == findings[:2]


def test_two_operators_are_two_machines() -> None:
    assert require_apart(("https://a.example", "https://b.example:8443")) == "a.example and b.example"
    assert "for a try alone" in require_apart(("https://127.0.0.1:1", "https://localhost:2"))
    with pytest.raises(ConfigurationError, match="both operators' servers are at"):
        require_apart(("https://a.example:1", "https://A.example:2"))
