"""Readiness, ``moiety doctor``, and a server that cannot start."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

import moiety
from host.doctor import Finding, Verdict
from protocol.errors import PeerUnreachable, StorageFull, Unavailable
from protocol.sharing import Side
from servers import status as readiness_module
from servers.doctor import examine_server
from servers.identity.certificate import ServedCertificate
from servers.monitoring import Metrics
from servers.status import Readiness
from servers.store.files import ShareFiles
from tests.kit.certificates import DAY_S, write_certificate

# --- readiness --------------------------------------------------------------------------------------------------------


class Peer:
    def __init__(self, error: PeerUnreachable | None = None) -> None:
        self.calls = 0
        self.error = error

    async def reachable(self) -> None:
        self.calls += 1
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error


def room(size_bytes: int) -> None:
    """There is enough."""


def app_with(peer: Peer, **parts: Any) -> Any:
    usual = {
        "store": SimpleNamespace(ready=lambda: None),
        "drives": True,
        "history": SimpleNamespace(require_current=lambda: None),
        "side": Side.A,
        "files": SimpleNamespace(require_room=room),
        "certificate": None,
        "clock": lambda: 1000.0,
        "metrics": Metrics(),
    }
    server = SimpleNamespace(**{**usual, **parts})
    return SimpleNamespace(state=SimpleNamespace(server=server, peer=peer, pool=SimpleNamespace(session_open=True)))


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Readiness goes by its one entry, which stands still until a test moves it."""
    now = [100.0]
    loop = SimpleNamespace(time=lambda: now[0])
    there = SimpleNamespace(get_running_loop=lambda: loop, create_task=asyncio.create_task, Lock=asyncio.Lock)
    monkeypatch.setattr(readiness_module, "asyncio", there)
    return now


def test_a_hundred_questions_are_one_call_to_the_peer() -> None:
    peer = Peer()

    async def ask() -> None:
        readiness = Readiness(app_with(peer))
        await asyncio.gather(*(readiness.require() for _ in range(100)))

    asyncio.run(ask())
    assert peer.calls == 1


def test_what_is_not_ready_is_asked_again_after_half_a_second(now_s: list[float]) -> None:
    peer = Peer(PeerUnreachable("down"))

    async def ask() -> None:
        readiness = Readiness(app_with(peer))
        for later_s in (*[0.0] * 50, 0.49):
            now_s[0] += later_s
            with pytest.raises(PeerUnreachable):
                await readiness.require()
        assert peer.calls == 1
        peer.error = None
        now_s[0] += 0.02
        await readiness.require()

    asyncio.run(ask())
    assert peer.calls == 2


def test_a_full_disk_is_not_ready(tmp_path: Path) -> None:
    files = ShareFiles(tmp_path / "shares", reserve_bytes=2**62)
    with pytest.raises(StorageFull, match=r"0 are free.*operator"):
        asyncio.run(Readiness(app_with(Peer(), files=files)).require())


def test_an_expired_certificate_is_not_ready_and_one_that_ends_soon_is_remarked(tmp_path: Path) -> None:
    chain, key = write_certificate(tmp_path, trustme.CA(), ends_in_days=6.0)
    certificate = ServedCertificate(SimpleNamespace(tls_certificate=chain, tls_key=key))  # type: ignore[arg-type]
    soon = Readiness(app_with(Peer(), certificate=certificate, clock=time.time))
    asyncio.run(soon.require())
    assert "in 6.0 days" in soon.remarks()["certificate"]
    later = Readiness(app_with(Peer(), certificate=certificate, clock=lambda: time.time() + 7 * DAY_S))
    with pytest.raises(Unavailable, match="expired"):
        asyncio.run(later.require())
    assert Readiness(app_with(Peer())).remarks() == {}


def test_what_was_found_is_a_metric_and_asking_for_metrics_waits_for_no_peer(now_s: list[float]) -> None:
    peer, metrics = Peer(PeerUnreachable("down")), Metrics()

    async def ask() -> None:
        readiness = Readiness(app_with(peer, metrics=metrics))
        for _ in range(20):
            readiness.look_soon()
        assert peer.calls == 0, "nobody waited"
        await looked(readiness)
        assert (peer.calls, b"moiety_ready 0.0" in metrics.exposition()) == (1, True)
        peer.error = None
        now_s[0] += 0.51
        readiness.look_soon()
        await looked(readiness)
        assert b"moiety_ready 1.0" in metrics.exposition()

    asyncio.run(ask())
    assert peer.calls == 2


def test_a_status_waits_for_the_peer_a_while_and_then_says_so() -> None:
    there, gone = Peer(), Peer()
    never = asyncio.Event()

    async def ask() -> None:
        assert await Readiness(app_with(there)).look(within_s=60) is None
        gone.reachable = never.wait  # type: ignore[assignment]  # a peer that takes the call and answers nothing
        found = await Readiness(app_with(gone)).look(within_s=0.01)
        assert isinstance(found, PeerUnreachable)

    asyncio.run(ask())
    assert (there.calls, gone.calls) == (1, 0)


async def looked(readiness: Readiness) -> None:
    """The look that somebody asked for has come to its end."""
    assert readiness._looking is not None
    await readiness._looking


def test_a_process_that_does_not_drive_is_ready_while_another_does() -> None:
    """One of several processes: the peer is the other one's, and is not asked."""
    peer, missing = Peer(), list[Unavailable]()

    def require_driver() -> None:
        for found in missing:
            raise found

    async def ask() -> dict[str, str]:
        store = SimpleNamespace(ready=lambda: None, require_driver=require_driver)
        readiness = Readiness(app_with(peer, store=store, drives=False))
        await readiness.require()
        missing.append(Unavailable("no process drives"))
        readiness._until_s = 0.0
        with pytest.raises(Unavailable, match="no process drives"):
            await readiness.require()
        return readiness.seen()

    assert asyncio.run(ask()) == {"driver": "another process"}
    assert peer.calls == 0


# --- server doctor ----------------------------------------------------------------------------------------------------


def found(config: Path) -> dict[str, Finding]:
    return {one.check: one for one in examine_server(config).findings}


def changed(config: Path, key: str, line: str) -> None:
    """The settings with this key's line replaced or added."""
    head, separator, limits = config.read_text().partition("[limits]")
    lines = [one for one in head.splitlines() if not one.startswith(f"{key} =")]
    config.write_text("\n".join([*lines, line, f"{separator}{limits}"]))


def test_all_is_well_but_for_the_peer(config: Path) -> None:
    seen = found(config)
    failed = [one for one in seen.values() if one.verdict is Verdict.FAILED]
    assert ["nobody listens there" in one.found for one in failed] == [True]
    assert seen["database"].found == "SQLite in the data folder, made at the first start"
    assert "4 sites" in seen["roster and keys"].found
    assert seen["port"].verdict is Verdict.OK
    assert not (config.parent / "data" / "server.db").exists()


def test_settings_that_cannot_be_read_are_all_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("side = 'c'\n")
    (only,) = examine_server(tmp_path / "wrong.toml").findings
    assert (only.check, only.verdict) == ("settings", Verdict.FAILED)


def test_a_certificate_for_another_name_is_named(config: Path) -> None:
    changed(config, "public_url", 'public_url = "https://a.hospital.example"')
    seen = found(config)
    assert "is for 127.0.0.1, and sites call 'a.hospital.example' (public_url)" in seen["certificate"].found
    assert "key 'public_url'" in seen["roster and keys"].found


def test_a_port_in_use_and_a_database_that_is_away_are_named(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        changed(config, "port", f"port = {taken.getsockname()[1]}")
        changed(config, "database_url", 'database_url = "postgresql+psycopg://u:secret@127.0.0.1:1/none"')
        seen = found(config)
    assert "cannot be listened on" in seen["port"].found
    assert seen["database"].verdict is Verdict.FAILED
    assert "is it up, and are user, password and name right?" in seen["database"].found
    assert "secret" not in seen["database"].found


# --- cli --------------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[3]


def test_a_refused_configuration_is_one_line_with_its_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Try the whole command line here, and a server's own in a process of its own."""
    missing = tmp_path / "none.toml"
    said = f"error (configuration): {missing} cannot be read: there is no such file: is the path right?\n"
    with pytest.raises(SystemExit) as ended:
        moiety.main(["server", "run", "--config", str(missing)])
    assert (ended.value.code, capsys.readouterr().err) == (2, said)
    command = [sys.executable, "-m", "servers.cli", "run", "--config", str(missing)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (2, said)
