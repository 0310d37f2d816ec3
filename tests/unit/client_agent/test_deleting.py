"""Deleting a study, and permits that end."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from client_agent.cli.agent import app
from client_agent.settings import AgentSettings, load_settings
from client_agent.site.connections import one_agent
from client_agent.site.journal import SiteState, StudyJournal
from client_agent.study.approval import Word, approval_of, keep_word, known_study, pause_study, resume_study
from client_agent.study.deletion import RECEIPT, delete_study, end_permits, is_deleted
from client_agent.study.transcripts import KEPT_ROUNDS
from host.audit_log import AUDIT, Action, AuditLog, read_audit
from protocol.errors import ConfigurationError, StorageFull
from protocol.messages.control import Signed, check_signature
from protocol.messages.study import DeletionReceipt
from tests.kit.present import present
from tests.unit.client_agent.federation import ROSTER, keys
from tests.unit.client_agent.test_page import STUDY, config, journal

# --- deleting ---------------------------------------------------------------------------------------------------------

assert config  # a fixture of that module


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
    """A transcript of each of the newest rounds, 10,000 by default: with the others more than a receipt once listed."""
    over(config)
    transcripts = journal(config).folder / "transcripts"
    transcripts.mkdir()
    for number in range(KEPT_ROUNDS):
        (transcripts / f"round-{number:06d}-01.json").touch()
    with monkeypatch.context() as patch:
        patch.setattr("client_agent.study.deletion.MOST_FILES", 9999)
        with pytest.raises(
            ConfigurationError, match="holds 10,002 files, and a receipt of deletion lists at most 9,999"
        ):
            delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended")
    assert len(delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended").message.files) == 10_002
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
