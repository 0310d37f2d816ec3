"""A person's word on a study: what is shown before it, and what is kept of it."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from client_agent.cli.agent import app
from client_agent.learning.study_file import study_from_toml
from client_agent.page.app import Door
from client_agent.site.journal import SiteState, StudyJournal
from client_agent.site.privacy_budget import Steps, accountant, epsilon_of
from client_agent.study.approval import Approval, approval_of, give
from client_agent.study.plain_words import About, in_plain_words
from harness.federation.processes import write_secret
from host.audit_log import AuditLog
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import PrivacySpec, RuleName, RuleSpec, sign
from protocol.messages.purpose import StudyProtection
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from protocol.roster.keyfile import dump_party_keys, dump_roster
from tests.kit.present import present
from tests.unit.client_agent.commands import write_config
from tests.unit.client_agent.federation import PARTIES, REQUESTER, ROSTER, keys, study
from tests.unit.client_agent.test_page import PORT, entered
from tests.unit.wire.test_schema import STUDY as OF_A_TABLE

STUDY = study()
FEWEST = min(party.samples or 0 for party in ROSTER.sites)


def words(**changes: object) -> str:
    of = STUDY.model_copy(update=changes)
    return "\n".join(f"{one.about}: {one.words}" for one in in_plain_words(of, ROSTER, SitePolicy()))


def test_what_a_study_opens_is_said_in_words() -> None:
    said = words()
    assert f"who asks: {REQUESTER}" in said
    assert "two halves that look random, one to each server: both servers together could read it" in said
    assert "noise: none: this study is not differentially private" in said
    assert "this site's policy: allows this study" in said


@pytest.mark.parametrize("name", [name for name in RuleName if name is not RuleName.LOCAL])
def test_every_rule_says_what_it_opens(name: RuleName) -> None:
    said = words(rule=RuleSpec(name=name))
    reads = [line for line in said.splitlines() if line.startswith("the requester reads: ")]
    needs = {RuleSpec(name=name).needs, name.declared.measures} - {Needs.NOTHING}
    assert len(reads) == max(1, len(needs))
    assert ("how many training examples of each class" in said) is name.counts_classes


def test_the_length_with_a_weight_is_said() -> None:
    """A study by samples opens a length with a weight where it bounds the lengths of updates."""
    said = words(rule=RuleSpec(name=RuleName.FEDAVG_BY_SAMPLES, norm_bound=1.0))
    assert "how long this site's update is with its own weight" in said


def test_a_person_reads_epsilon_before_the_word_is_asked_for() -> None:
    """At the delta of the site's own policy, over all rounds, with the accountant's name."""
    rounds, drawn = 7, min(1.0, STUDY.training.batch_size / FEWEST)
    privacy = PrivacySpec(record_clip=1.0, noise_multiplier=2.0)
    about = f"of one record at a site of {FEWEST} examples, which of all that sites declare"
    of = STUDY.model_copy(update={"privacy": privacy, "rounds": rounds, "rule": RuleSpec(name=RuleName.FEDAVG)})
    for delta in (1e-5, 1e-3):
        said = {one.about: one.words for one in in_plain_words(of, ROSTER, SitePolicy(delta=delta))}
        epsilon = epsilon_of([Steps(drawn, 2.0, rounds)], delta)
        assert said[About.EPSILON].startswith(f"{epsilon:.3f} at delta {delta:g}, if all 7 rounds take place: {about}")
        assert accountant() in said[About.EPSILON]
    assert "epsilon" not in words()


def test_ckks_is_said_loudly_and_a_refusing_policy_too() -> None:
    said = words(protection=StudyProtection.CKKS, rule=RuleSpec(name=RuleName.FEDAVG))
    assert "SERVER A TOGETHER WITH ANY ONE SITE CAN READ IT" in said
    assert "REFUSES this study: allow_ckks: " in said


@pytest.fixture
def contributor(tmp_path: Path) -> Path:
    """Settings of site c1, whose agent has found the study."""
    config = write_config(tmp_path)
    (tmp_path / "roster.toml").write_text(dump_roster(PARTIES.roster))
    write_secret(tmp_path / "c1.toml", dump_party_keys(keys("c1")))
    config.write_text(config.read_text().replace(f'"{REQUESTER}"', '"c1"').replace("keys.toml", "c1.toml"))
    journal = StudyJournal(tmp_path / "state", STUDY.name)
    journal.write(journal.folder / "study.json", sign(STUDY, REQUESTER, keys(REQUESTER).signing))
    return config


def said(config: Path, *arguments: str, text: str | None = None) -> Result:
    result = CliRunner().invoke(app, [*arguments, "--config", str(config)], input=text)
    if isinstance(result.exception, MoietyError):
        raise result.exception
    return result


def journal_of(config: Path) -> StudyJournal:
    return StudyJournal(config.parent / "state", STUDY.name)


def test_a_word_is_asked_for_once_more_and_kept(contributor: Path) -> None:
    assert "waits for a person: moiety agent approve unit" in said(contributor, "show", "--json").stdout
    no = said(contributor, "approve", STUDY.name, "--person", "Dr. A", text="n\n")
    assert no.exit_code == 1
    assert approval_of(journal_of(contributor), STUDY.digest()) is None
    yes = said(contributor, "approve", STUDY.name, "--person", "Dr. A", "--reason", "permit 7", text="y\n")
    assert "study unit: approved by Dr. A" in yes.stdout
    kept = present(approval_of(journal_of(contributor), STUDY.digest()))
    assert (kept.approved, kept.person, kept.reason) == (True, "Dr. A", "permit 7")
    assert json.loads(said(contributor, "show", "--json").stdout)["state"] == "under way"


def test_a_change_of_mind_is_kept_beside_the_first_word(contributor: Path) -> None:
    said(contributor, "approve", STUDY.name, "--person", "Dr. A", "--yes")
    said(contributor, "decline", STUDY.name, "--person", "Dr. B", "--reason", "withdrawn", "--yes")
    lines = (contributor.parent / "state" / "approvals.jsonl").read_text().splitlines()
    assert [json.loads(line)["person"] for line in lines] == ["Dr. A", "Dr. B"]
    assert journal_of(contributor).left == "withdrawn"
    assert json.loads(said(contributor, "show", "--json").stdout)["state"] == "left by this site: withdrawn"


def test_a_person_reads_the_whole_query(contributor: Path) -> None:
    """As it is written, on the command line and on the page: a line's end ends a comment of SQL."""
    last = "x" * 300
    query = "\n".join(
        ("SELECT age, ill -- by <month>", *["  , 'and so on'"] * 300, f"FROM visits WHERE note <> '{last}'")
    )
    asked = study_from_toml(OF_A_TABLE.replace("[schema]", f"[schema]\nquery = '''{query}'''"), "s", ROSTER, None)
    journal = StudyJournal(contributor.parent / "state", asked.name)
    journal.write(journal.folder / "study.json", sign(asked, REQUESTER, keys(REQUESTER).signing))
    table = [line.strip("│ ") for line in said(contributor, "show", asked.name).stdout.splitlines()]
    assert "SELECT age, ill -- by <month>" in table
    assert table.count(", 'and so on'") == 300
    assert f"{last}'" in "".join(table)
    door = Door(PORT)
    client = entered(contributor, door)
    page = client.get(f"/studies/{asked.name}").text
    assert html.escape(query, quote=True).replace("&#x27;", "&#39;") in page


def test_an_approval_is_of_one_study_alone(contributor: Path) -> None:
    word = Approval(study=STUDY.name, study_digest="0" * 64, approved=True, person="Dr. A", time_s=1.0)
    state = contributor.parent / "state"
    give(state, journal_of(contributor), word, AuditLog(state, "c1"))
    with pytest.raises(ConfigurationError, match="is for another study of that name"):
        approval_of(journal_of(contributor), STUDY.digest())


def test_no_word_on_what_is_unknown_own_or_over(contributor: Path) -> None:
    with pytest.raises(ConfigurationError, match="this site knows no study 'other'"):
        said(contributor, "show", "other")
    state = SiteState(study_digest=STUDY.digest(), training_seed=1, finished="completed: done", refused=True)
    journal_of(contributor).write_site_state(state)
    with pytest.raises(ConfigurationError, match="is over at this site"):
        said(contributor, "approve", STUDY.name, "--person", "Dr. A", "--yes")
    own = contributor.read_text().replace('"c1"', f'"{REQUESTER}"').replace("c1.toml", "keys.toml")
    contributor.write_text(own)
    with pytest.raises(ConfigurationError, match="'moiety study create' was its word"):
        said(contributor, "approve", STUDY.name, "--person", "Dr. A", "--yes")


def test_what_is_shown_is_shown_to_programs_too(contributor: Path) -> None:
    shown = json.loads(said(contributor, "show", STUDY.name, "--json").stdout)
    assert shown["digest"] == STUDY.digest()
    assert {"who asks", "what leaves", "noise"} <= {one["about"] for one in shown["statements"]}
