"""A person's word on a study: what is shown before it and kept of it, the study's deletion, permits that end."""

from __future__ import annotations

import errno
import hashlib
import html
import json
import os
import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from client_agent.cli.agent import app
from client_agent.learning.study_file import study_from_toml
from client_agent.settings import AgentSettings, load_settings
from client_agent.site.connections import one_agent
from client_agent.site.journal import SiteState, StudyJournal
from client_agent.site.privacy_budget import Steps, accountant, epsilon_of
from client_agent.study.approval import (
    Approval,
    Word,
    approval_of,
    give,
    keep_word,
    known_study,
    pause_study,
    resume_study,
)
from client_agent.study.deletion import RECEIPT, delete_study, end_permits, is_deleted
from client_agent.study.plain_words import About, in_plain_words
from client_agent.study.transcripts import KEPT_ROUNDS
from host.audit_log import AUDIT, Action, AuditLog, read_audit
from protocol.errors import ConfigurationError, MoietyError, StorageFull
from protocol.messages.control import PrivacySpec, RuleName, RuleSpec, Signed, check_signature, sign
from protocol.messages.purpose import StudyProtection
from protocol.messages.study import MOST_FILES, DeletionReceipt
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


# --- deleting ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(config: Path) -> AgentSettings:  # the fixture of that name
    return load_settings(config)


def full(*_: object, **__: object) -> None:
    raise StorageFull("no space left for audit.jsonl")


def stands(config: Path, **changes: Any) -> StudyJournal:
    """The site's journal of the study, which is over unless ``changes`` say otherwise."""
    fields = {"study_digest": STUDY.digest(), "training_seed": 7, "finished": "done", "refused": True}
    kept = journal(config)
    kept.write_site_state(SiteState(**{**fields, **changes}))
    return kept


def second_study(config: Path) -> Path:
    """The folder of a study whose name comes first, with the journal of the other one."""
    folder = StudyJournal(load_settings(config).state_dir, "aaa").folder
    for name in ("study.json", "site.json", "approval.json"):
        folder.joinpath(name).write_bytes((journal(config).folder / name).read_bytes())
    return folder


def over(config: Path) -> None:
    kept = stands(config, site_key="ab" * 32)
    (kept.folder / "metrics.jsonl").write_text("{}\n")
    (kept.round_folder(3) / "update.f32").write_bytes(b"secret")


def test_all_but_words_and_signed_messages_is_deleted_and_receipted(config: Path, settings: AgentSettings) -> None:
    keep_word(settings, STUDY.name, Word(approved=True, person="Dr. A", reason="permit 7"), STUDY.digest())
    over(config)
    memory = settings.state_dir / "sums.json"
    memory.write_text("kept")
    signed = delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended", clock=lambda: 5.0)
    party = present(ROSTER.party("c1"))
    check_signature(signed.message, signed.signatures[0], party)
    found = {one.path: (one.size_bytes, one.sha256) for one in signed.message.files}
    assert found["rounds/000003/update.f32"] == (6, hashlib.sha256(b"secret").hexdigest())
    assert "metrics.jsonl" in found
    folder = journal(config).folder
    assert {path.name for path in folder.iterdir()} == {"study.json", "approval.json", "site.json", RECEIPT}
    state = present(journal(config).site_state())
    assert (state.site_key, state.training_seed, state.finished, state.over) == (None, 0, "done", True)
    assert memory.read_text() == "kept"
    last = read_audit(settings.state_dir / AUDIT)[-1]
    assert (last.action, last.actor, last.study) == (Action.DELETED, "Dr. B", STUDY.name)
    assert signed.message.digest() in last.detail
    assert known_study(settings, ROSTER, STUDY.name).over
    assert delete_study(settings, STUDY.name, "Dr. C", "again") == signed


def test_a_kill_in_the_middle_is_ended_by_the_next_try(
    config: Path, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    over(config)
    with monkeypatch.context() as patch:
        patch.setattr("client_agent.study.deletion.shutil.rmtree", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended")
    (journal(config).folder / "later.txt").write_text("an agent ran in between")
    said = list[str]()
    signed = delete_study(settings, STUDY.name, "Dr. C", "again", say=said.append)
    assert said == ["study unit: this goes on with the deletion that Dr. B asked for and that was not ended"]
    assert not (journal(config).folder / "rounds").exists()
    assert {"rounds/000003/update.f32", "metrics.jsonl", "later.txt"} == {one.path for one in signed.message.files}
    assert signed.message.person == "Dr. B"
    party = present(ROSTER.party("c1"))
    check_signature(signed.message, signed.signatures[0], party)
    assert journal(config).read(journal(config).folder / RECEIPT, Signed[DeletionReceipt]) == signed
    lines = read_audit(settings.state_dir / AUDIT)
    assert [line.actor for line in lines] == ["Dr. B", "Dr. C"]
    assert lines[1].detail.startswith("goes on with the deletion that Dr. B asked for")
    assert delete_study(settings, STUDY.name, "Dr. D", "once more", say=said.append) == signed
    assert said[1:] == ["study unit was deleted before, as Dr. B asked; nothing is left to delete"]
    assert read_audit(settings.state_dir / AUDIT) == lines


def test_the_same_files_as_before_have_the_same_receipt(
    config: Path, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the audit log is written: nothing has gone yet, the keys in site.json neither."""
    over(config)
    (journal(config).folder / "metrics.jsonl").unlink()
    shutil.rmtree(journal(config).folder / "rounds")

    with monkeypatch.context() as patch:
        patch.setattr(AuditLog, "add", full)
        with pytest.raises(StorageFull):
            delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended", clock=lambda: 5.0)
    assert not is_deleted(journal(config))
    signed = delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended")
    assert (signed.message.files, signed.message.at_s) == ((), 5)
    assert is_deleted(journal(config))
    state = present(journal(config).site_state())
    assert state.site_key is None


def test_a_site_deletes_what_its_settings_let_it_keep(
    config: Path, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transcript of each of the newest rounds, and the others: more than a receipt once listed."""
    assert MOST_FILES > 10 * KEPT_ROUNDS
    over(config)
    transcripts = journal(config).folder / "transcripts"
    transcripts.mkdir()
    for number in range(1000):
        (transcripts / f"round-{number:06d}-01.json").touch()
    said = "holds 1,002 files, and a receipt of deletion lists at most 999"
    with monkeypatch.context() as patch:
        patch.setattr("client_agent.study.deletion.MOST_FILES", 999)
        with pytest.raises(ConfigurationError, match=said):
            delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended")
    assert len(delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended").message.files) == 1002
    assert is_deleted(journal(config))


def test_nothing_is_deleted_under_way_unnamed_or_beside_a_running_agent(config: Path, settings: AgentSettings) -> None:
    before = sorted(journal(config).folder.rglob("*"))
    with pytest.raises(ConfigurationError, match="is not over at this site"):
        delete_study(settings, STUDY.name, "Dr. B", "")
    over(config)
    with pytest.raises(ConfigurationError, match="needs the name of the person"):
        delete_study(settings, STUDY.name, " ", "")
    with one_agent(settings), pytest.raises(ConfigurationError, match="is in use by the agent of 'c1'"):
        delete_study(settings, STUDY.name, "Dr. B", "")
    assert set(before) <= set(journal(config).folder.rglob("*"))


def test_peoples_words_are_in_the_log_with_their_names(settings: AgentSettings) -> None:
    keep_word(settings, STUDY.name, Word(approved=True, person="Dr. A", reason="permit 7"), STUDY.digest())
    pause_study(settings, STUDY.name, "Dr. B", "new scanner")
    resume_study(settings, STUDY.name)
    lines = read_audit(settings.state_dir / AUDIT)
    assert [(one.action.value, one.actor, one.detail) for one in lines] == [
        ("approved", "Dr. A", "permit 7"),
        ("paused", "Dr. B", "new scanner"),
        ("resumed", "software", ""),
    ]
    assert {one.study_digest for one in lines} == {STUDY.digest()}
    assert json.loads((settings.state_dir / "approvals.jsonl").read_text())["person"] == "Dr. A"


# --- permits ----------------------------------------------------------------------------------------------------------

LAST_DAY = date(2999, 3, 31)


def at(moment: str) -> float:
    return datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()


@pytest.fixture
def settings_of_permit(config: Path) -> AgentSettings:
    found = load_settings(config)
    keep_word(found, STUDY.name, Word(approved=True, person="Dr. A", reason="permit 7", until=LAST_DAY), STUDY.digest())
    stands(config, finished=None, refused=False)
    return found


def ended(settings_of_permit: AgentSettings, moment: str, *running: str) -> list[str]:
    return end_permits(settings_of_permit, ROSTER, keys("c1"), running, lambda: at(moment))


def test_a_study_under_way_is_left_after_the_last_day_and_deleted_when_nothing_works_on_it(
    config: Path, settings_of_permit: AgentSettings
) -> None:
    assert ended(settings_of_permit, "2999-03-31T23:59:59") == []
    said = ended(settings_of_permit, "2999-04-01T00:00:00", STUDY.name)
    assert said == ["study unit: the permit ended on 2999-03-31; this site has left it"]
    assert journal(config).left == "the permit ended on 2999-03-31"
    assert ended(settings_of_permit, "2999-04-01T01:00:00", STUDY.name) == []
    (deleted,) = ended(settings_of_permit, "2999-04-01T02:00:00")
    assert "files are deleted" in deleted
    assert ended(settings_of_permit, "2999-04-01T03:00:00") == []
    receipt = present(journal(config).read(journal(config).folder / RECEIPT, Signed[DeletionReceipt]))
    assert (receipt.message.person, receipt.message.reason) == ("software", "the permit ended on 2999-03-31")
    known = known_study(settings_of_permit, ROSTER, STUDY.name)
    assert known.over
    assert known.finished == "left by this site: the permit ended on 2999-03-31"
    lines = read_audit(settings_of_permit.state_dir / AUDIT)
    assert [(one.action, one.actor) for one in lines] == [
        (Action.APPROVED, "Dr. A"),
        (Action.LEFT, "software"),
        (Action.DELETED, "software"),
    ]
    assert lines[0].detail == "permit 7 (until 2999-03-31)"


def test_a_study_that_is_over_is_deleted_at_once(config: Path, settings_of_permit: AgentSettings) -> None:
    stands(config)
    assert len(ended(settings_of_permit, "2999-04-01T00:00:00")) == 1
    assert journal(config).left is None
    assert known_study(settings_of_permit, ROSTER, STUDY.name).finished == "done"


@pytest.mark.parametrize("file", ["study.json", "site.json", "approval.json"])
def test_a_journal_that_cannot_be_read_keeps_no_other_permit_from_ending(
    config: Path, settings_of_permit: AgentSettings, file: str
) -> None:
    """The damaged study comes first by its name."""
    damaged = second_study(config)
    (damaged / file).write_bytes(b'{"half')
    first, left, deleted = ended(settings_of_permit, "2999-04-01T00:00:00")
    assert first.startswith("study aaa: its permit could not be looked at, or not ended where it is over: ")
    assert f"{damaged / file}: not a state file of this version" in first
    assert left == "study unit: the permit ended on 2999-03-31; this site has left it"
    assert deleted == "study unit: the permit ended on 2999-03-31; 0 files are deleted"


def test_a_study_that_cannot_be_deleted_is_left_and_keeps_no_other_from_it(
    config: Path, settings_of_permit: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = second_study(config)
    (stuck / "metrics.jsonl").write_text("{}\n")

    def denied(path: Path) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("client_agent.study.deletion._sha256", denied)
    left, failed, other, _ = ended(settings_of_permit, "2999-04-01T00:00:00")
    assert "this site has left it" in left
    assert failed.startswith("study aaa: ")
    assert "Permission denied" in failed
    assert "this site has left it" in other
    (stuck / "left.txt").write_bytes(b"half a letter: \xc3")
    monkeypatch.undo()
    (deleted,) = ended(settings_of_permit, "2999-04-01T01:00:00")
    assert "1 files are deleted" in deleted
    assert not (stuck / "metrics.jsonl").exists()


def test_a_deletion_that_a_full_disk_broke_off_goes_on_within_the_hour(
    config: Path, settings_of_permit: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt was there, and no file to delete: only site.json still had its keys, and nobody came back."""
    stands(config, site_key="ab" * 32)

    with monkeypatch.context() as patch:
        patch.setattr(AuditLog, "add", full)
        (failed,) = ended(settings_of_permit, "2999-04-01T00:00:00")
    assert "no space left for audit.jsonl" in failed
    said = ended(settings_of_permit, "2999-04-01T01:00:00")
    assert said == [
        "study unit: this goes on with the deletion that software asked for and that was not ended",
        "study unit: the permit ended on 2999-03-31; 0 files are deleted",
    ]
    state = present(journal(config).site_state())
    assert state.site_key is None
    assert read_audit(settings_of_permit.state_dir / AUDIT)[-1].action is Action.DELETED
    assert ended(settings_of_permit, "2999-04-01T02:00:00") == []


@pytest.mark.parametrize("word", [Word(approved=True, person="Dr. A"), Word(approved=False, person="Dr. A")])
def test_a_word_without_a_day_ends_nothing(config: Path, word: Word) -> None:
    found = load_settings(config)
    assert ended(found, "2999-04-01T00:00:00") == []
    keep_word(found, STUDY.name, word, STUDY.digest())
    assert ended(found, "2999-04-01T00:00:00") == []


def test_the_day_is_an_option_of_the_word_and_lies_ahead(config: Path) -> None:
    def approve(until: str) -> BaseException | None:
        words = ["approve", STUDY.name, "--person", "Dr. A", "--until", until, "--yes", "--config", str(config)]
        return CliRunner().invoke(app, words).exception

    refused = approve("2001-01-01")
    assert isinstance(refused, ConfigurationError)
    assert "2001-01-01 has passed" in refused.detail
    assert approve("2999-03-31") is None
    word = present(approval_of(journal(config), STUDY.digest()))
    assert word.until == LAST_DAY
