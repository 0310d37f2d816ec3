"""Deleting a study that is over: every file goes and is in a signed receipt, what protects patients stays."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from client_agent.settings import AgentSettings, load_settings
from client_agent.site.connections import one_agent
from client_agent.site.journal import SiteState
from client_agent.study.asked.at_hand import Word, keep_word, known_study, pause_study, resume_study
from client_agent.study.asked.deleting import RECEIPT, delete_study
from host.audit.entry import Action
from host.audit.log import AUDIT, read_audit
from protocol.errors import ConfigurationError
from protocol.wire.authentic import check_signature
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
    signed = delete_study(settings, STUDY.name, "Dr. B", "permit 7 ended")
    assert not (journal(config).folder / "rounds").exists()
    assert "rounds/000003/update.f32" in {one.path for one in signed.message.files}


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
