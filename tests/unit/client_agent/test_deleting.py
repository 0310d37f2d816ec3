"""Deleting a study that is over: every file goes and is in a signed receipt, what protects patients stays."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from client_agent.settings import AgentSettings, load_settings
from client_agent.site.connections import one_agent
from client_agent.site.journal import SiteState
from client_agent.study.asked.at_hand import Word, keep_word, known_study, pause_study, resume_study
from client_agent.study.asked.deleting import RECEIPT, delete_study, is_deleted
from host.audit_log import AUDIT, Action, AuditLog, read_audit
from protocol.errors import ConfigurationError, StorageFull
from protocol.messages.control import Signed, check_signature
from protocol.messages.study import DeletionReceipt
from tests.unit.client_agent.federation import ROSTER
from tests.unit.client_agent.test_page import STUDY, config, journal

assert config  # a fixture of that module


@pytest.fixture
def settings(config: Path) -> AgentSettings:  # the fixture of that name
    return load_settings(config)


def over(config: Path) -> None:
    kept = journal(config)
    kept.write_site_state(
        SiteState(study_digest=STUDY.digest(), training_seed=7, site_key="ab" * 32, finished="done", refused=True)
    )
    (kept.folder / "metrics.jsonl").write_text("{}\n")
    (kept.round_folder(3) / "update.f32").write_bytes(b"secret")


def test_all_but_words_and_signed_messages_is_deleted_and_receipted(config: Path, settings: AgentSettings) -> None:
    keep_word(settings, STUDY.name, Word(approved=True, person="Dr. A", reason="permit 7"), STUDY.digest())
    over(config)
    memory = settings.state_dir / "sums.json"
    memory.write_text("kept")
    signed = delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended", clock=lambda: 5.0)
    party = ROSTER.party("c1")
    assert party is not None
    check_signature(signed.message, signed.signatures[0], party)
    found = {one.path: (one.size_bytes, one.sha256) for one in signed.message.files}
    assert found["rounds/000003/update.f32"] == (6, hashlib.sha256(b"secret").hexdigest())
    assert "metrics.jsonl" in found
    folder = journal(config).folder
    assert {path.name for path in folder.iterdir()} == {"study.json", "approval.json", "site.json", RECEIPT}
    state = journal(config).site_state()
    assert state is not None
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
        patch.setattr("client_agent.study.asked.deleting.shutil.rmtree", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended")
    (journal(config).folder / "later.txt").write_text("an agent ran in between")
    said = list[str]()
    signed = delete_study(settings, STUDY.name, "Dr. C", "again", say=said.append)
    assert said == ["study unit: this goes on with the deletion that Dr. B asked for and that was not ended"]
    assert not (journal(config).folder / "rounds").exists()
    assert {"rounds/000003/update.f32", "metrics.jsonl", "later.txt"} == {one.path for one in signed.message.files}
    assert signed.message.person == "Dr. B"
    party = ROSTER.party("c1")
    assert party is not None
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

    def full(*_: object, **__: object) -> None:
        raise StorageFull("no space left for audit.jsonl")

    with monkeypatch.context() as patch:
        patch.setattr(AuditLog, "add", full)
        with pytest.raises(StorageFull):
            delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended", clock=lambda: 5.0)
    assert not is_deleted(journal(config))
    signed = delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended")
    assert (signed.message.files, signed.message.at_s) == ((), 5)
    assert is_deleted(journal(config))
    state = journal(config).site_state()
    assert state is not None
    assert state.site_key is None


def test_a_site_deletes_what_its_settings_let_it_keep(
    config: Path, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transcript of each of the newest rounds, 10,000 by default: with the others more than a receipt once listed."""
    over(config)
    transcripts = journal(config).folder / "transcripts"
    transcripts.mkdir()
    for number in range(settings.transcripts_kept_rounds):
        (transcripts / f"round-{number:06d}-01.json").touch()
    with monkeypatch.context() as patch:
        patch.setattr("client_agent.study.asked.deleting.MOST_FILES", 9999)
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
