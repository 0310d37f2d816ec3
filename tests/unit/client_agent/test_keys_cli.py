"""``moiety keys``: from new keys to a complete roster, and what goes wrong on the way."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_agent.cli.keys import app
from host import placed_files
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


def test_a_public_file_in_the_way_leaves_no_stray_secret(tmp_path: Path) -> None:
    (tmp_path / "c1.public.toml").write_text("another's")
    with pytest.raises(ConfigurationError, match=r"c1\.public\.toml exists already"):
        run("new", "--name", "c1", "--role", "site", "--out", str(tmp_path), "--samples", "40")
    assert [path.name for path in tmp_path.iterdir()] == ["c1.public.toml"]
    assert (tmp_path / "c1.public.toml").read_text() == "another's"


def test_what_has_to_be_compared_is_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    address = "https://moiety.research-computing.a-university-hospital-with-a-long-name.example.org:8443"
    new = ("new", "--out", str(tmp_path), "--name")
    run(*new, "op-a", "--role", "operator", "--url", address)
    run(*new, "op-b", "--role", "operator", "--url", "https://b.example")
    for site in SITES:
        run(*new, site, "--role", "site", "--samples", "40")
    shown = run("show", str(make_roster(tmp_path))).splitlines()
    assert f"  address      {address}" in shown
    for name in ("op-a", "op-b", *SITES):
        key = parse_party_keys((tmp_path / f"{name}.secret.toml").read_text(), name).party().signing_key
        assert f"  signing key  {key}" in shown


def mounted_alone(target: Path) -> None:
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def test_a_roster_that_is_mounted_alone_is_signed_in_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roster = make_roster(folder)
    file = roster.stat().st_ino
    monkeypatch.setattr(os, "replace", lambda source, target: mounted_alone(target))
    signed = json.loads(run("sign", str(roster), "--key", str(folder / "op-a.secret.toml"), "--json"))
    assert signed["signatures"] == {"op-a": "valid"}
    assert roster.stat().st_ino == file
    assert not list(folder.glob("*.tmp"))


def test_a_roster_that_cannot_be_written_is_as_it_was_and_the_text_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roster = make_roster(folder)
    before = roster.read_bytes()
    monkeypatch.setattr(os, "replace", lambda source, target: mounted_alone(target))
    full = iter([OSError(errno.EIO, os.strerror(errno.EIO))])

    def fails_once(handle: int) -> None:
        for error in full:
            raise error

    with monkeypatch.context() as within:
        within.setattr(placed_files.os, "fsync", fails_once)  # type: ignore[attr-defined]
        with pytest.raises(ConfigurationError, match=r"nothing was changed: name another place, in which user"):
            run("sign", str(roster), "--key", str(folder / "op-a.secret.toml"))
    assert roster.read_bytes() == before


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
        (("--name", "x", "--role", "operator", "--url", "https://:8443"), "https://HOST"),
        (("--name", "x", "--role", "operator", "--url", "https://me:secret@a.example"), "https://HOST"),
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


def test_an_address_with_more_than_host_and_port_gets_into_no_roster(folder: Path) -> None:
    public = folder / "op-a.public.toml"
    for address in ("https://a.example/moiety", "https://:8443", "https://me:word@a.example", "https://a.example:0"):
        public.write_text(re.sub(r'url = ".*"', f'url = "{address}"', public.read_text()))
        with pytest.raises(MoietyError, match="no user or password, no path"):
            make_roster(folder)
    assert not (folder / "roster.toml").exists()
