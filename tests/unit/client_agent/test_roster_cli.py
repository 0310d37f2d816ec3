"""``moiety roster``: from a claim to a roster file with one change more, and what goes wrong on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_agent.cli import keys, roster
from protocol.errors import ConfigurationError, MoietyError, RosterRefused
from protocol.roster.chain import require_chain
from protocol.roster.changes import dump_chain
from protocol.roster.keyfile import dump_party_keys
from tests.unit.wire.rosters import CHAIN, PARTIES, SIGNERS, URLS


def run(*arguments: str, of: object = roster.app) -> str:
    result = CliRunner().invoke(of, list(arguments), catch_exceptions=True)  # type: ignore[arg-type]  # a typer app
    if isinstance(result.exception, MoietyError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "roster.toml").write_text(dump_chain(CHAIN))
    for name in SIGNERS:
        path = tmp_path / f"{name}.secret.toml"
        path.write_text(dump_party_keys(PARTIES.keys[name]))
        path.chmod(0o600)
    return tmp_path


def new_site(folder: Path, name: str) -> Path:
    run("new", "--name", name, "--role", "site", "--samples", "40", "--out", str(folder), of=keys.app)
    claim = folder / f"{name}.claim.toml"
    key = str(folder / f"{name}.secret.toml")
    run("claim", str(folder / "roster.toml"), "--key", key, "--samples", "40", "--out", str(claim))
    return claim


def propose(folder: Path, *arguments: str, name: str = "proposal.toml") -> Path:
    out = folder / name
    run("change", str(folder / "roster.toml"), "--reason", "it is time", "--out", str(out), *arguments)
    return out


def test_a_site_is_added_one_is_removed_and_an_operator_gets_new_keys(folder: Path) -> None:
    renewed = folder / "new"
    run("new", "--name", "operator-a", "--role", "operator", "--url", URLS["operator-a"], "--out", str(renewed),
        of=keys.app)  # fmt: skip
    key = str(renewed / "operator-a.secret.toml")
    run("claim", str(folder / "roster.toml"), "--key", key, "--out", str(renewed / "claim.toml"))
    proposal = propose(folder, "--add", str(new_site(folder, "late")), "--remove", "hospital-3", "--replace",
                       str(renewed / "claim.toml"))  # fmt: skip
    before = json.loads(run("show", str(proposal), "--json"))
    assert not before["valid"]
    for name in SIGNERS:
        with pytest.raises(MoietyError, match="is missing"):
            run("apply", str(folder / "roster.toml"), str(proposal))
        run("sign", str(proposal), "--key", str(folder / f"{name}.secret.toml"))
    after = json.loads(run("apply", str(folder / "roster.toml"), str(proposal), "--json"))
    assert (after["valid"], after["head"]) == (True, before["head"])
    assert set(after["changes"][0]["signatures"].values()) == {"valid"}
    chain = require_chain(roster.read_chain(folder / "roster.toml"))
    assert [site.name for site in chain.head.sites] == ["hospital-0", "hospital-1", "hospital-2", "late"]
    shown = run("show", str(folder / "roster.toml"))
    assert "hospital-3 is removed" in shown
    assert "late is added" in shown
    assert chain.head_digest in shown
    assert chain.head_digest in run("show", str(folder / "roster.toml"), of=keys.app)
    next_one = propose(folder, "--remove", "hospital-2", name="next.toml")
    with pytest.raises(ConfigurationError, match="not the keys that 'operator-a' has"):
        run("sign", str(next_one), "--key", str(folder / "operator-a.secret.toml"))


def test_a_proposal_after_another_link_is_refused(folder: Path) -> None:
    first = propose(folder, "--remove", "hospital-3", name="first.toml")
    second = propose(folder, "--remove", "hospital-2", name="second.toml")
    for proposal in (first, second):
        for name in SIGNERS:
            run("sign", str(proposal), "--key", str(folder / f"{name}.secret.toml"))
    run("apply", str(folder / "roster.toml"), str(first))
    with pytest.raises(RosterRefused, match="fork"):
        run("apply", str(folder / "roster.toml"), str(second))
    run("apply", str(folder / "roster.toml"), str(first))


def test_what_is_added_is_new_and_what_is_replaced_is_there(folder: Path) -> None:
    claim = new_site(folder, "late")
    with pytest.raises(ConfigurationError, match="--replace: 'late' is not in the roster"):
        propose(folder, "--replace", str(claim))
    own = run("claim", str(folder / "roster.toml"), "--key", str(folder / "operator-b.secret.toml"), "--out",
              str(folder / "b.toml"), "--json")  # fmt: skip
    assert json.loads(own)["name"] == "operator-b"
    with pytest.raises(ConfigurationError, match="--add: 'operator-b' is already in the roster"):
        propose(folder, "--add", str(folder / "b.toml"))


def test_a_first_roster_is_signed_by_those_who_found(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no change to sign: .* 'moiety site found'"):
        run("sign", str(folder / "roster.toml"), "--key", str(folder / "operator-a.secret.toml"))
