"""The certificate a server shows: how long it holds, who is warned when, and a renewed one without a restart."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
import uvicorn
from structlog.testing import capture_logs

from protocol.errors import ConfigurationError, Unavailable
from servers.api.admission import Admission
from servers.api.listener import BoundedServer, listen
from servers.identity.certificate import ServedCertificate
from servers.settings import Limits
from tests.kit.certificates import DAY_S, write_certificate
from tests.ports import HOST, more_free_ports

CA = trustme.CA()
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def settings(folder: Path) -> Any:
    return SimpleNamespace(tls_certificate=folder / "tls.pem", tls_key=folder / "tls.key")


def served(folder: Path, **how: float) -> ServedCertificate:
    write_certificate(folder, CA, **how)  # type: ignore[arg-type]
    return ServedCertificate(settings(folder))


def test_an_expired_certificate_is_not_valid_and_says_what_to_do(tmp_path: Path) -> None:
    certificate = served(tmp_path, ends_in_days=2.0)
    now_s = time.time()
    assert certificate.expires_s == pytest.approx(now_s + 2 * DAY_S, abs=5)
    certificate.require_valid(now_s)
    with pytest.raises(Unavailable, match=r"tls\.pem expired on \d{4}-.*put a renewed one.*without a restart"):
        certificate.require_valid(now_s + 2.1 * DAY_S)


@pytest.mark.parametrize(("left_days", "remarked"), [(31.0, False), (29.0, True), (0.5, True)])
def test_one_that_ends_within_a_month_is_remarked(tmp_path: Path, left_days: float, remarked: bool) -> None:
    found = served(tmp_path, ends_in_days=left_days).remark(time.time())
    assert (found is not None) is remarked
    if found is not None:
        assert f"in {left_days:.1f} days: renew" in found


def test_who_has_a_ca_of_its_own_is_told_the_command(tmp_path: Path) -> None:
    certificate = served(tmp_path, ends_in_days=2.0)
    assert "(the CA's or ACME's way)" in str(certificate.remark(time.time()))
    (tmp_path / "ca-key.pem").touch()
    assert "('moiety server renew')" in str(certificate.remark(time.time()))


def test_the_log_warns_once_at_30_7_1_and_0_days(tmp_path: Path) -> None:
    certificate = served(tmp_path, ends_in_days=40.0)
    with capture_logs() as logs:
        for half_days in range(82):
            certificate.warn(time.time() + half_days * DAY_S / 2)
    assert [(one["event"], one["log_level"]) for one in logs] == [("certificate_expires", "warning")] * 3 + [
        ("certificate_expired", "error")
    ]
    assert "in 30.0 days" in logs[0]["detail"]
    assert "in 7.0 days" in logs[1]["detail"]
    assert "in 1.0 days" in logs[2]["detail"]
    assert logs[3]["detail"].startswith("expired on ")
    assert "no site can connect: renew" in logs[3]["detail"]


def test_half_of_a_renewal_changes_nothing_and_the_rest_completes_it(tmp_path: Path) -> None:
    certificate, shown = served(tmp_path, ends_in_days=2.0), list[ssl.SSLContext]()
    before, old_key = certificate.expires_s, (tmp_path / "tls.key").read_bytes()
    assert not certificate.renew(shown.append)
    write_certificate(tmp_path, CA, ends_in_days=90.0)
    new_key = (tmp_path / "tls.key").read_bytes()
    (tmp_path / "tls.key").write_bytes(old_key)
    with capture_logs() as logs:
        assert not certificate.renew(shown.append)
        assert not certificate.renew(shown.append)
        (tmp_path / "tls.key").unlink()
        assert not certificate.renew(shown.append)
    assert [one["event"] for one in logs] == ["certificate_not_renewed"] * 2
    assert "not a certificate chain and its private key" in logs[0]["detail"]
    assert (certificate.expires_s, shown) == (before, [])
    (tmp_path / "tls.key").touch(mode=0o600)
    (tmp_path / "tls.key").write_bytes(new_key)
    assert certificate.renew(shown.append)
    assert certificate.expires_s - before == pytest.approx(88 * DAY_S, abs=60)
    assert shown == [certificate.context]


def test_a_file_without_a_certificate_is_refused(tmp_path: Path) -> None:
    write_certificate(tmp_path, CA)
    (tmp_path / "tls.pem").write_text("none")
    with pytest.raises(ConfigurationError, match=r"tls\.pem"):
        ServedCertificate(settings(tmp_path))


async def _hello(scope: dict[str, Any], receive: Any, send: Any) -> None:
    assert scope["scheme"] == "https"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def client_context(tmp_path: Path) -> ssl.SSLContext:
    CA.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))


def test_a_renewed_certificate_is_shown_and_no_open_connection_is_dropped(
    tmp_path: Path, client_context: ssl.SSLContext
) -> None:
    certificate = served(tmp_path, ends_in_days=2.0)
    (port,) = more_free_ports(1)
    config = uvicorn.Config(_hello, http="httptools", ws="none", lifespan="off", log_config=None)
    server = BoundedServer(
        config,
        listen("port", HOST, port),
        Admission(Limits()),
        lambda code: None,
        hears_signals=False,
        tls=certificate.context,
    )

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, float]:
        reader, writer = await asyncio.open_connection(HOST, port, ssl=client_context)
        shown = writer.get_extra_info("ssl_object").getpeercert()
        return reader, writer, ssl.cert_time_to_seconds(shown["notAfter"])

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        return head.split(b"\r\n")[0] + await reader.readexactly(2)

    async def renew_between() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        first = await connect()
        assert b"200" in await ask(*first[:2])
        write_certificate(tmp_path, CA, ends_in_days=90.0)
        assert certificate.renew(server.show)
        assert b"200" in await ask(*first[:2])  # over the connection of before
        second = await connect()
        assert b"200" in await ask(*second[:2])
        assert second[2] - first[2] == pytest.approx(88 * DAY_S, abs=60)
        for _, writer, _ in (first, second):
            writer.close()
        server.should_exit = True
        await serving

    asyncio.run(renew_between())
