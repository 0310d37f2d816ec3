"""``moiety roster``: new keys, what is shown of a roster, changes of it; old rosters hold."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from client_agent.cli.roster import app
from client_agent.cli.roster_files import read_chain as read_chain_file
from client_agent.site.identity import signed_chain
from harness.engine.parties import SiteEntry, make_parties
from protocol.errors import ConfigurationError, MoietyError, RosterRefused
from protocol.messages.control import Roster, Signed
from protocol.roster.chain import dump_chain, require_chain
from protocol.roster.keyfile import dump_party_keys, dump_roster, parse_party_keys
from protocol.sharing import Side
from servers.identity.roster import read_chain
from tests.unit.client_agent.commands import command
from tests.unit.wire.rosters import CHAIN, SIGNERS, URLS
from tests.unit.wire.rosters import PARTIES as MADE

SITES = ("r0", "c1", "c2", "c3")
LONG = "https://moiety.research-computing.a-university-hospital-with-a-long-name.example.org:8443"
PARTIES = make_parties(
    "f", "r0", [SiteEntry(name, 40) for name in SITES], bytes(32), {Side.A: LONG, Side.B: "https://b.example"}
)
A, B = (PARTIES.roster.message.operator(side).name for side in Side)
BY_HAND = Path(__file__).parents[2] / "frozen" / "roster_by_hand.toml"
"""Put together and signed by the commands of release 0.1."""


def run(*arguments: str) -> str:
    return command(*arguments, app=app).stdout


def new(folder: Path, name: str) -> Path:
    run("new-keys", "--name", name, "--role", "site", "--out", str(folder), "--samples", "40")
    return folder / f"{name}.secret.toml"


def signed_by(folder: Path, *names: str) -> Path:
    """The roster with these signatures alone."""
    signatures = tuple(one for one in PARTIES.roster.signatures if one.signer in names)
    path = folder / "roster.toml"
    path.write_text(dump_roster(Signed[Roster](message=PARTIES.roster.message, signatures=signatures)))
    return path


def test_a_roster_becomes_complete(tmp_path: Path) -> None:
    before = json.loads(run("show", str(signed_by(tmp_path, A, "r0")), "--json"))
    assert (before["complete"], before["signatures"]) == (False, {A: "valid", "r0": "valid"})
    roster = signed_by(tmp_path, A, B, "r0")
    signed = json.loads(run("show", str(roster), "--json"))
    assert signed["complete"]
    assert signed["digest"] == before["digest"]
    shown = run("show", str(roster))
    assert before["digest"] in shown
    assert "complete" in shown


def test_a_roster_that_was_made_by_hand_holds_at_a_site_and_at_a_server() -> None:
    shown = json.loads(run("show", str(BY_HAND), "--json"))
    assert shown["complete"]
    assert shown["signatures"] == dict.fromkeys(("op-a", "op-b", "r0", "c1"), "valid")
    for chain in (signed_chain(BY_HAND), read_chain(BY_HAND)):
        assert chain.head_digest == "37c178ef55b2f406ba8d19eef4bbb52654d8676b2d53a37ae78705488c4a784a"
        assert [site.name for site in chain.head.sites] == ["r0", "c1"]


def test_secret_files_are_private_and_never_overwritten(tmp_path: Path) -> None:
    secret = new(tmp_path, "c1")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    keys = parse_party_keys(secret.read_text(), "c1")
    for path in tmp_path.glob("*.public.toml"):
        assert keys.signing.to_bytes().hex() not in path.read_text()
    content = secret.read_text()
    with pytest.raises(ConfigurationError, match="exists already"):
        new(tmp_path, "c1")
    assert secret.read_text() == content


def test_a_public_file_in_the_way_leaves_no_stray_secret(tmp_path: Path) -> None:
    (tmp_path / "c1.public.toml").write_text("another's")
    with pytest.raises(ConfigurationError, match=r"c1\.public\.toml exists already"):
        run("new-keys", "--name", "c1", "--role", "site", "--out", str(tmp_path), "--samples", "40")
    assert [path.name for path in tmp_path.iterdir()] == ["c1.public.toml"]
    assert (tmp_path / "c1.public.toml").read_text() == "another's"


def test_what_has_to_be_compared_is_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = run("show", str(signed_by(tmp_path))).splitlines()
    assert f"  address      {LONG}" in shown
    for party in PARTIES.roster.message.parties:
        assert f"  signing key  {party.signing_key}" in shown


def test_an_altered_roster_shows_its_signatures_as_not_valid(tmp_path: Path) -> None:
    roster = signed_by(tmp_path, A)
    roster.write_text(roster.read_text().replace("samples = 40", "samples = 41", 1))
    shown = json.loads(run("show", str(roster), "--json"))
    assert shown["signatures"] == {A: "not valid"}
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
        run("new-keys", *arguments, "--out", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


# --- changes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "roster.toml").write_text(dump_chain(CHAIN))
    for name in SIGNERS:
        path = tmp_path / f"{name}.secret.toml"
        path.write_text(dump_party_keys(MADE.keys[name]))
        path.chmod(0o600)
    return tmp_path


def new_site(folder: Path, name: str) -> Path:
    key, claim = str(new(folder, name)), folder / f"{name}.claim.toml"
    run("claim", str(folder / "roster.toml"), "--key", key, "--samples", "40", "--out", str(claim))
    return claim


def propose(folder: Path, *arguments: str, name: str = "proposal.toml") -> Path:
    out = folder / name
    run("change", str(folder / "roster.toml"), "--reason", "it is time", "--out", str(out), *arguments)
    return out


def test_a_site_is_added_one_is_removed_and_an_operator_gets_new_keys(folder: Path) -> None:
    renewed = folder / "new"
    run("new-keys", "--name", "operator-a", "--role", "operator", "--url", URLS["operator-a"], "--out", str(renewed))
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
    chain = require_chain(read_chain_file(folder / "roster.toml"))
    assert [site.name for site in chain.head.sites] == ["hospital-0", "hospital-1", "hospital-2", "late"]
    shown = run("show", str(folder / "roster.toml"))
    assert "hospital-3 is removed" in shown
    assert "late is added" in shown
    assert chain.head_digest in shown

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
