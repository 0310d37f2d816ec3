"""``moiety keys``: from new keys to a complete roster, and what goes wrong on the way."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_agent.cli.keys import app
from protocol.errors import ConfigurationError, MoietyError
from protocol.wire.authentic import require_roster
from protocol.wire.keyfile import parse_party_keys, parse_roster

SITES = ("r0", "c1", "c2", "c3")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if isinstance(result.exception, MoietyError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for side in ("a", "b"):
        run(
            "new",
            "--name",
            f"op-{side}",
            "--role",
            "operator",
            "--out",
            str(tmp_path),
            "--url",
            f"https://{side}.example",
        )
    for site in SITES:
        run("new", "--name", site, "--role", "site", "--out", str(tmp_path), "--samples", "40")
    return tmp_path


def make_roster(folder: Path, sites: tuple[str, ...] = SITES, requester: str = "r0") -> Path:
    out = folder / "roster.toml"
    arguments = ["--federation", "f", "--requester", requester, "--out", str(out)]
    arguments += ["--operator-a", str(folder / "op-a.public.toml"), "--operator-b", str(folder / "op-b.public.toml")]
    for site in sites:
        arguments += ["--site", str(folder / f"{site}.public.toml")]
    run("roster", *arguments)
    return out


def test_a_roster_becomes_complete(folder: Path) -> None:
    roster = make_roster(folder)
    for name in ("op-a", "r0"):
        run("sign", str(roster), "--key", str(folder / f"{name}.secret.toml"))
    before = json.loads(run("show", str(roster), "--json"))
    assert (before["complete"], before["signatures"]) == (False, {"op-a": "valid", "r0": "valid"})
    signed = json.loads(run("sign", str(roster), "--key", str(folder / "op-b.secret.toml"), "--json"))
    assert signed["complete"]
    assert signed["digest"] == before["digest"]
    assert [p.name for p in require_roster(parse_roster(roster.read_text(), "r")).sites] == list(SITES)
    shown = run("show", str(roster))
    assert before["digest"] in shown
    assert "complete" in shown


def test_secret_files_are_private_and_never_overwritten(folder: Path) -> None:
    secret = folder / "c1.secret.toml"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    keys = parse_party_keys(secret.read_text(), "c1")
    for path in folder.glob("*.public.toml"):
        assert keys.signing.to_bytes().hex() not in path.read_text()
    content = secret.read_text()
    with pytest.raises(ConfigurationError, match="exists already"):
        run("new", "--name", "c1", "--role", "site", "--out", str(folder), "--samples", "40")
    assert secret.read_text() == content


def test_an_altered_roster_shows_its_signatures_as_not_valid(folder: Path) -> None:
    roster = make_roster(folder)
    run("sign", str(roster), "--key", str(folder / "op-a.secret.toml"))
    roster.write_text(roster.read_text().replace("samples = 40", "samples = 41", 1))
    shown = json.loads(run("show", str(roster), "--json"))
    assert shown["signatures"] == {"op-a": "not valid"}
    assert not shown["complete"]
    assert "not complete" in run("show", str(roster))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--name", "x", "--role", "site"), "a site needs --samples"),
        (("--name", "x", "--role", "operator"), "an operator needs --url"),
        (
            ("--name", "X y", "--role", "site", "--samples", "4"),
            r"^option --name .*key 'name': .*found 'X y'$",
        ),
        (("--name", "x", "--role", "site", "--samples", "0"), "samples"),
        (("--name", "x", "--role", "operator", "--url", "http://a.example"), "url"),
    ],
)
def test_wrong_new_keys(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run("new", *arguments, "--out", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_wrong_rosters(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="'c9' is not among the sites"):
        make_roster(folder, requester="c9")
    with pytest.raises(ConfigurationError, match="the same name"):
        make_roster(folder, sites=("r0", "c1", "c1"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        make_roster(folder, sites=("r0", "nobody"))
    roster = make_roster(folder, sites=("r0", "c1"))
    with pytest.raises(ConfigurationError, match="which the roster does not name"):
        run("sign", str(roster), "--key", str(folder / "c3.secret.toml"))
