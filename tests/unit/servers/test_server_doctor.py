"""``moiety doctor`` for a server that does not run yet, and whose peer does not either."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from host.doctor import Finding, Verdict
from protocol.sharing import Side
from servers.doctor import examine_server
from tests.kit.processes import Federation, prepare_servers

SITES = ("hospital-0", "hospital-1", "hospital-2", "hospital-3")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    made: Federation = prepare_servers(tmp_path, SITES)
    return made.servers[Side.A].config


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
