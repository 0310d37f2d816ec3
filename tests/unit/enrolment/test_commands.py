"""Output and refusals of the commands of enrolment; what they do has tests of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from client_agent.site import founding
from protocol.roster.enrolment import fingerprint_of, invitation_line, read_invitation
from protocol.sharing import Side
from tests.kit.command_line import moiety
from tests.unit.enrolment.enrolling import Operators


@pytest.fixture
def at_a(both: Operators) -> tuple[str, str]:
    return "--config", str(both.folder / "a" / "settings.toml")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert moiety(*words) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert moiety(*words) == 2
    return capsys.readouterr().err


def test_an_invitation_is_the_only_line_on_standard_output(
    at_a: tuple[str, str], both: Operators, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = said(capsys, "server", "invite", "clinic-1", "--ttl", "30m", *at_a)
    invitation = read_invitation(printed)
    assert (invitation.site, invitation.requester, invitation.url) == ("clinic-1", False, "https://a.example:8443")
    assert printed.count("\n") == 1
    assert said(capsys, "server", "admissions", *at_a).startswith("invitation for clinic-1: open, until ")
    (listed,) = json.loads(said(capsys, "server", "admissions", "--json", *at_a))["invited"]
    assert (listed["site"], listed["is"], "secret" in listed) == ("clinic-1", "open", False)
    assert said(capsys, "server", "invite", "clinic-1", "--withdraw", *at_a).startswith(
        "clinic-1: withdrawn: 1 invitations"
    )
    assert "no invitations: 'moiety server invite NAME'" in said(capsys, "server", "admissions", *at_a)


@pytest.mark.parametrize("ttl", ["", "0h", "48", "31d", "2w", "-1h", "1.5h"])
def test_a_lifetime_is_written_in_one_way(at_a: tuple[str, str], capsys: pytest.CaptureFixture[str], ttl: str) -> None:
    assert "it is 30m, 48h or 7d, at most 30d" in refused(capsys, "server", "invite", "clinic-1", f"--ttl={ttl}", *at_a)


def test_a_name_is_checked(at_a: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no name: lower-case letters" in refused(capsys, "server", "invite", "Clinic 1", *at_a)


def test_who_registered_is_listed_and_admitted(
    at_a: tuple[str, str], both: Operators, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nobody has registered here yet" in said(capsys, "server", "admissions", *at_a)
    site = both.join("clinic-1", samples=412)
    assert "clinic-1: 412 training examples, waits: have its people read" in said(capsys, "server", "admissions", *at_a)
    wrong = refused(capsys, "server", "admit", "clinic-1", "--fingerprint", "1" * 40, *at_a)
    assert "what was read is not the fingerprint" in wrong
    assert "nothing was kept" in wrong
    assert "clinic-1: 412 training examples, waits:" in said(capsys, "server", "admissions", *at_a)
    nobody = refused(capsys, "server", "admit", "nobody", "--fingerprint", "1" * 40, *at_a)
    assert "has not registered here: it runs 'moiety site join' first" in nobody
    digits = fingerprint_of(site.party)
    assert "clinic-1: admitted here" in said(capsys, "server", "admit", "clinic-1", "--fingerprint", digits, *at_a)
    (listed,) = json.loads(said(capsys, "server", "admissions", "--json", *at_a))["registered"]
    assert listed == {"name": "clinic-1", "requester": False, "admitted": True}


def test_a_site_shows_its_fingerprint_and_those_of_its_operators(
    both: Operators, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_agent.site.enrolment.look", lambda joined, _way: both.look(joined))
    site = both.join("clinic-1")
    own = ("--config", str(site.folder / "settings.toml"))
    printed = said(capsys, "site", "status", *own)
    for card in (site.party, *(both.desks[side].card for side in Side)):
        assert fingerprint_of(card) in printed
    shown = json.loads(said(capsys, "site", "status", "--json", *own))
    assert shown["operators"]["operator-b"] == fingerprint_of(both.desks[Side.B].card)


def test_a_folder_that_was_not_joined_is_named(both: Operators, capsys: pytest.CaptureFixture[str]) -> None:
    (both.folder / "empty").mkdir()
    config = str(both.folder / "empty" / "settings.toml")
    assert "empty was not made by 'moiety site join'" in refused(capsys, "site", "status", "--config", config)


def test_an_invitation_in_a_file_is_one(both: Operators, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (both.folder / "first", both.folder / "second")
    for path, one in zip((first, second), both.invite("clinic-1"), strict=True):
        path.write_text(invitation_line(one.model_copy(update={"federation": path.name})) + "\n")
    words = ("--samples", "5", "--data", "data", "--out", str(both.folder / "x"))
    assert "for two federations, 'first' and 'second'" in refused(
        capsys, "site", "join", str(first), str(second), *words
    )


def test_a_folder_that_nobody_joined_by_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings, key and roster were carried by hand there, so no key is lost."""
    config = tmp_path / "hospital-1.toml"
    config.write_text('site = "hospital-1"\nkeys = "h1/keys.toml"\nroster = "roster.toml"\n')
    why = refused(capsys, "site", "status", "--wait", "--config", str(config))
    assert "was not made by 'moiety site join'" in why
    assert "takes changes from the servers while its agent runs" in why
    assert "backup" not in why


def test_commands_by_which_keys_are_renewed_and_sites_removed(
    both: Operators, at_a: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    requester, _ = both.ready_to_found()
    assert "is no contributor of this federation's roster (nobody yet)" in refused(
        capsys, "server", "remove", "clinic-1", *at_a
    )
    founding.found(requester, both.send, (), both.clock)
    assert "other keys of a site that is in it: --renew" in refused(capsys, "server", "invite", "clinic-1", *at_a)
    printed = said(capsys, "server", "invite", "clinic-1", "--renew", *at_a)
    assert read_invitation(printed).site == "clinic-1"
    for name in ("requester", "operator-b", "clinic-9"):
        why = refused(capsys, "server", "invite", name, "--renew", *at_a)
        assert "a removed site returns under another name; one that is not in the roster yet needs a plain" in why
        assert "changed between studies, by a file" in why
    both.late("clinic-2")
    founding.add(requester, ["clinic-2"], "joins", both.send, both.clock)
    for side in Side:
        at = ("--config", str(both.folder / side.value / "settings.toml"))
        assert "run the same command, and the requester" in said(capsys, "server", "remove", "clinic-2", *at)
    assert "clinic-2: stays" in said(capsys, "server", "remove", "clinic-2", "--undo", *at_a)
    monkeypatch.setattr("client_agent.site.enrolment.Way", lambda _: both.send)
    both.clock.now_s = time.time()
    own = ("--reason", "it left", "--config", str(requester.folder / "settings.toml"))
    assert "operator-a keeps 'clinic-2'" in refused(capsys, "site", "remove", "clinic-2", *own)
    said(capsys, "server", "remove", "clinic-2", *at_a)
    assert "change 2 of the roster is in place" in said(capsys, "site", "remove", "clinic-2", *own)


def test_an_invitations_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("site", "join", "inv.a.txt", "inv.b.txt", "--samples", "5", "--data", "d", "--out", str(tmp_path / "c1"))
    assert "inv.a.txt: there is no such file, and it is no invitation" in refused(capsys, *words)
