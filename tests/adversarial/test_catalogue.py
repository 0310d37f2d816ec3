"""The catalogue of attacks and the command that runs them; ``test_attacks_by_....py`` run each of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import moiety
from harness.attack import second_ends
from harness.attack.attack import Attempt, Found, Party, replaced, taken_out
from harness.attack.catalogue import catalogue, line_of, tried
from harness.attack.scripted_requester import ScriptedRequester, make_study
from harness.attack.scripted_rounds import SITES, SMALL, VICTIM
from harness.attack.signed_client import Deployment
from protocol.errors import ConfigurationError
from tests.adversarial.attacks import ATTACKS, PARTIES
from tests.kit.processes import start_servers

DOCS = Path(__file__).parents[2] / "docs"
THREAT_MODEL = (DOCS / "threat_model.md").read_text()
LEAST = 100
AS_DEPLOYED = {"connections_per_address": 64, "unsigned_per_s": 20.0}
AS_DEPLOYED |= {"header_s": 1.0, "idle_s": 1, "stall_s": 1.0}
"""Counts as a server has them unless it is told otherwise, and short times."""


def test_every_party_is_in_one_file_of_attacks() -> None:
    """``test_attacks_by_....py``, one for each group, so that test workers share them."""
    parties = [party for group in PARTIES.values() for party in group]
    assert sorted(parties) == sorted(Party)
    assert {path.stem for path in Path(__file__).parent.glob("test_attacks_by_*.py")} == {
        f"test_attacks_by_{group}" for group in PARTIES
    }


def test_there_are_enough_and_what_does_not_hold_is_named() -> None:
    assert len(ATTACKS) >= LEAST
    for attack in ATTACKS:
        if not attack.promised:
            assert f"`{attack.name}`" in THREAT_MODEL, f"docs/threat_model.md does not name {attack.name}"
        if attack.promised:
            assert attack.how.without, f"{attack.name} says nothing of what its defence is in the code"


def test_every_attack_stands_in_the_threat_model_beside_what_it_tries_to_break() -> None:
    """An attack's own name, or its family's: `share-...`."""
    families = tuple(re.findall(r"`((?:[a-z]+-)+)\.\.\.`", THREAT_MODEL))
    names = [attack.name for attack in ATTACKS]
    assert [name for name in names if f"`{name}`" not in THREAT_MODEL and not name.startswith(families)] == []
    assert [family for family in families if not any(name.startswith(family) for name in names)] == []


def test_attacks_that_documents_name_are_there() -> None:
    pages = {
        page: page.read_text() for page in (*DOCS.glob("*.md"), *DOCS.glob("results/*.md"), *DOCS.glob("adr/*.md"))
    }
    named = {
        (page.name, name)
        for page, text in pages.items()
        for names in re.findall(r"attacks? ((?:`[a-z0-9-]+`(?:, | and )?)+)", text)
        for name in re.findall(r"`([a-z0-9-]+)`", names)
    }
    assert {one for one in named if one[1] not in catalogue()} == set()
    assert len(named) > 3


def test_a_defence_that_the_product_does_not_have_any_more_is_an_error() -> None:
    with pytest.raises(AttributeError), taken_out({"protocol.sharing.no_such_check": None}):
        pass


class _Base:
    @staticmethod
    def check() -> str:
        return "checked"

    def inherited(self) -> str:
        return "inherited"


class _Owner(_Base):
    pass


def test_what_is_replaced_is_put_back_as_it_was() -> None:
    before = dict(vars(_Base)), dict(vars(_Owner))
    with replaced(_Base, "check", lambda: "passes"), replaced(_Owner, "inherited", lambda owner: "replaced"):
        assert (_Base.check(), _Owner().inherited(), _Base().inherited()) == ("passes", "replaced", "inherited")
    assert (dict(vars(_Base)), dict(vars(_Owner))) == before


def test_a_row_without_an_attempt_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_ends, "ATTEMPTS", {})
    with pytest.raises(ConfigurationError, match=r"differ.*ends-burn-in-private"):
        catalogue.__wrapped__()


def test_an_attack_that_could_not_be_tried_did_not_hold() -> None:
    def fails(folder: Path) -> Found:
        raise ZeroDivisionError

    found = tried(replace(catalogue()["list-of-one"], how=Attempt(fails)))
    assert (found.held, found.as_documented) == (False, False)
    assert found.error.startswith("ZeroDivisionError")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(moiety.build("attack"), ["attack", *arguments])
    return result.exit_code, result.output


def test_one_attack_by_name_with_json(tmp_path: Path) -> None:
    code, said = run("sum-plus-half-a-norm", "--out", str(tmp_path / "found.json"))
    assert code == 0, said
    assert "as the threat model says" in said.replace("\n", " ")
    (found,) = json.loads((tmp_path / "found.json").read_text())["attacks"]
    assert {"name", "party", "tried", "defence", "held", "figure", "seconds"} <= set(found)
    assert (found["name"], found["held"]) == ("sum-plus-half-a-norm", False)


def test_the_page_on_attacking_shows_what_one_attack_and_all_of_them_print() -> None:
    def without_figures(text: str) -> list[str]:
        return [re.sub(r"\d[\d.e-]*", "N", line).rstrip() for line in text.splitlines()]

    page = without_figures((DOCS / "attacking.md").read_text())
    code, said = run("share-two-faced")
    assert code == 0
    assert [line for line in without_figures(said) if line not in page] == []
    lines = [line_of(tried(catalogue()[name])) for name in ("share-two-faced", "list-of-accomplices")]
    assert [line for line in without_figures("\n".join(lines)) if line not in page] == []


def test_without_its_defence_it_says_that_it_was_reached() -> None:
    code, said = run("sum-without-a-site", "--defence-off")
    assert (code, "REACHED" in said) == (0, True), said


def test_the_list_names_every_attack_and_an_unknown_name_is_refused() -> None:
    code, said = run("--list")
    assert code == 0
    assert all(attack.name[:12] in said for attack in ATTACKS)
    code, said = run("share-two-face")
    assert (code, "share-two-faced" in said, "--list" in said) == (2, True, True), said


def test_without_tenseal_attacks_on_ciphertexts_are_left_out_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.attack.catalogue.has_ckks", lambda: False)
    assert {name for name in catalogue() if name not in catalogue.__wrapped__()} == {
        name for name in catalogue() if name.startswith(("ckks-", "ciphertext"))
    }
    assert "pip install 'moiety[he]'" in run("--list")[1].replace("\n", " ")


def test_outside_attacks_run_against_servers_that_are_there(tmp_path: Path) -> None:
    with start_servers(tmp_path, SITES, limits=AS_DEPLOYED) as federation:
        sites = ScriptedRequester(federation, make_study(federation, SMALL))
        sites.create()
        folder = federation.folder
        named = ["--roster", str(folder / "roster.toml"), "--keys", str(folder / VICTIM / "keys.toml")]
        named += ["--ca", str(federation.ca_file), "--study", sites.study.name]
        outside = [attack.name for attack in ATTACKS if attack.how.on is not None]
        assert len(outside) >= 4
        for name in outside:
            code, said = run(name, *named)
            assert (code, "held" in said) == (0, True), said
        with pytest.raises(ConfigurationError, match="runs on a federation of its own alone"):
            CliRunner().invoke(
                moiety.build("attack"), ["attack", "list-of-one", *named], catch_exceptions=False, standalone_mode=False
            )
        place = Deployment.named(folder / "roster.toml", folder / VICTIM / "keys.toml", federation.ca_file, "elsewhere")
        assert tried(catalogue()[outside[0]], on=place).held
        sites.close()
