"""A person's word on a study: what is shown before it, and what is kept of it."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from client_agent.cli.agent import app
from client_agent.learning.study_file import study_from_toml
from client_agent.site.journal import SiteState, StudyJournal
from client_agent.site.privacy_budget import Steps, accountant, epsilon_of
from client_agent.study.approval import Approval, approval_of, give
from client_agent.study.plain_words import About, in_plain_words
from host.audit_log import AuditLog
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import PrivacySpec, RuleName, RuleSpec, sign
from protocol.messages.purpose import StudyProtection
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from tests.kit.present import present
from tests.unit.client_agent.federation import REQUESTER, ROSTER, keys
from tests.unit.client_agent.test_page import STUDY, as_requester, config, entered, journal
from tests.unit.wire.test_schema import STUDY as OF_A_TABLE

assert config  # a fixture of that module
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


def said(config: Path, *arguments: str, text: str | None = None) -> Result:
    result = CliRunner().invoke(app, [*arguments, "--config", str(config)], input=text)
    if isinstance(result.exception, MoietyError):
        raise result.exception
    return result


def test_a_word_is_asked_for_once_more_and_kept(config: Path) -> None:
    assert "waits for a person: moiety agent approve unit" in said(config, "show", "--json").stdout
    no = said(config, "approve", STUDY.name, "--person", "Dr. A", text="n\n")
    assert no.exit_code == 1
    assert approval_of(journal(config), STUDY.digest()) is None
    yes = said(config, "approve", STUDY.name, "--person", "Dr. A", "--reason", "permit 7", text="y\n")
    assert "study unit: approved by Dr. A" in yes.stdout
    kept = present(approval_of(journal(config), STUDY.digest()))
    assert (kept.approved, kept.person, kept.reason) == (True, "Dr. A", "permit 7")
    assert json.loads(said(config, "show", "--json").stdout)["state"] == "under way"


def test_a_change_of_mind_is_kept_beside_the_first_word(config: Path) -> None:
    said(config, "approve", STUDY.name, "--person", "Dr. A", "--yes")
    said(config, "decline", STUDY.name, "--person", "Dr. B", "--reason", "withdrawn", "--yes")
    lines = (config.parent / "state" / "approvals.jsonl").read_text().splitlines()
    assert [json.loads(line)["person"] for line in lines] == ["Dr. A", "Dr. B"]
    assert journal(config).left == "withdrawn"
    assert json.loads(said(config, "show", "--json").stdout)["state"] == "left by this site: withdrawn"


def test_a_person_reads_the_whole_query(config: Path) -> None:
    """As it is written, on the command line and on the page: a line's end ends a comment of SQL."""
    last = "x" * 300
    query = "\n".join(
        ("SELECT age, ill -- by <month>", *["  , 'and so on'"] * 300, f"FROM visits WHERE note <> '{last}'")
    )
    asked = study_from_toml(OF_A_TABLE.replace("[schema]", f"[schema]\nquery = '''{query}'''"), "s", ROSTER, None)
    kept = StudyJournal(config.parent / "state", asked.name)
    kept.write(kept.folder / "study.json", sign(asked, REQUESTER, keys(REQUESTER).signing))
    table = [line.strip("│ ") for line in said(config, "show", asked.name).stdout.splitlines()]
    assert "SELECT age, ill -- by <month>" in table
    assert table.count(", 'and so on'") == 300
    assert f"{last}'" in "".join(table)
    page = entered(config).get(f"/studies/{asked.name}").text
    assert html.escape(query, quote=True).replace("&#x27;", "&#39;") in page


def test_an_approval_is_of_one_study_alone(config: Path) -> None:
    word = Approval(study=STUDY.name, study_digest="0" * 64, approved=True, person="Dr. A", time_s=1.0)
    state = config.parent / "state"
    give(state, journal(config), word, AuditLog(state, "c1"))
    with pytest.raises(ConfigurationError, match="is for another study of that name"):
        approval_of(journal(config), STUDY.digest())


def test_no_word_on_what_is_unknown_own_or_over(config: Path) -> None:
    with pytest.raises(ConfigurationError, match="this site knows no study 'other'"):
        said(config, "show", "other")
    state = SiteState(study_digest=STUDY.digest(), training_seed=1, finished="completed: done", refused=True)
    journal(config).write_site_state(state)
    with pytest.raises(ConfigurationError, match="is over at this site"):
        said(config, "approve", STUDY.name, "--person", "Dr. A", "--yes")
    with pytest.raises(ConfigurationError, match="'moiety study create' was its word"):
        said(as_requester(config), "approve", STUDY.name, "--person", "Dr. A", "--yes")


def test_what_is_shown_is_shown_to_programs_too(config: Path) -> None:
    shown = json.loads(said(config, "show", STUDY.name, "--json").stdout)
    assert shown["digest"] == STUDY.digest()
    assert {"who asks", "what leaves", "noise"} <= {one["about"] for one in shown["statements"]}
