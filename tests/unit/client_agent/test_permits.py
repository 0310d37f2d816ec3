"""A permit's last day has passed: the site leaves the study, and deletes it once nothing works on it."""

from __future__ import annotations

import errno
import os
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_agent.cli.agent import app
from client_agent.settings import AgentSettings, load_settings
from client_agent.site.approval import approval_of
from client_agent.site.journal import SiteState, StudyJournal
from client_agent.study.asked.at_hand import Word, keep_word, known_study
from client_agent.study.asked.deleting import RECEIPT
from client_agent.study.asked.permits import end_permits
from host.audit_log import AUDIT, Action, AuditLog, read_audit
from protocol.errors import ConfigurationError, StorageFull
from protocol.messages.control import Signed
from protocol.messages.study import DeletionReceipt
from tests.unit.client_agent.federation import ROSTER, keys
from tests.unit.client_agent.test_page import STUDY, config, journal

assert config  # a fixture of that module

LAST_DAY = date(2999, 3, 31)


def at(moment: str) -> float:
    return datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()


@pytest.fixture
def settings(config: Path) -> AgentSettings:
    found = load_settings(config)
    keep_word(found, STUDY.name, Word(approved=True, person="Dr. A", reason="permit 7", until=LAST_DAY), STUDY.digest())
    journal(config).write_site_state(SiteState(study_digest=STUDY.digest(), training_seed=7))
    return found


def ended(settings: AgentSettings, moment: str, *running: str) -> list[str]:
    return end_permits(settings, ROSTER, keys("c1"), running, lambda: at(moment))


def test_a_study_under_way_is_left_after_the_last_day_and_deleted_when_nothing_works_on_it(
    config: Path, settings: AgentSettings
) -> None:
    assert ended(settings, "2999-03-31T23:59:59") == []
    said = ended(settings, "2999-04-01T00:00:00", STUDY.name)
    assert said == ["study unit: the permit ended on 2999-03-31; this site has left it"]
    assert journal(config).left == "the permit ended on 2999-03-31"
    assert ended(settings, "2999-04-01T01:00:00", STUDY.name) == []
    (deleted,) = ended(settings, "2999-04-01T02:00:00")
    assert "files are deleted" in deleted
    assert ended(settings, "2999-04-01T03:00:00") == []
    receipt = journal(config).read(journal(config).folder / RECEIPT, Signed[DeletionReceipt])
    assert receipt is not None
    assert (receipt.message.person, receipt.message.reason) == ("software", "the permit ended on 2999-03-31")
    known = known_study(settings, ROSTER, STUDY.name)
    assert known.over
    assert known.finished == "left by this site: the permit ended on 2999-03-31"
    lines = read_audit(settings.state_dir / AUDIT)
    assert [(one.action, one.actor) for one in lines] == [
        (Action.APPROVED, "Dr. A"),
        (Action.LEFT, "software"),
        (Action.DELETED, "software"),
    ]
    assert lines[0].detail == "permit 7 (until 2999-03-31)"


def test_a_study_that_is_over_is_deleted_at_once(config: Path, settings: AgentSettings) -> None:
    journal(config).write_site_state(
        SiteState(study_digest=STUDY.digest(), training_seed=7, finished="done", refused=True)
    )
    assert len(ended(settings, "2999-04-01T00:00:00")) == 1
    assert journal(config).left is None
    assert known_study(settings, ROSTER, STUDY.name).finished == "done"


@pytest.mark.parametrize("file", ["study.json", "site.json", "approval.json"])
def test_a_journal_that_cannot_be_read_keeps_no_other_permit_from_ending(
    config: Path, settings: AgentSettings, file: str
) -> None:
    """The damaged study comes first by its name."""
    damaged = StudyJournal(settings.state_dir, "aaa").folder
    for path in ("study.json", "site.json", "approval.json"):
        damaged.joinpath(path).write_bytes((journal(config).folder / path).read_bytes())
    (damaged / file).write_bytes(b'{"half')
    first, left, deleted = ended(settings, "2999-04-01T00:00:00")
    assert first.startswith("study aaa: its permit could not be looked at, or not ended where it is over: ")
    assert f"{damaged / file}: not a state file of this version" in first
    assert left == "study unit: the permit ended on 2999-03-31; this site has left it"
    assert deleted == "study unit: the permit ended on 2999-03-31; 0 files are deleted"


def test_a_study_that_cannot_be_deleted_is_left_and_keeps_no_other_from_it(
    config: Path, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = StudyJournal(settings.state_dir, "aaa").folder
    for path in ("study.json", "site.json", "approval.json"):
        stuck.joinpath(path).write_bytes((journal(config).folder / path).read_bytes())
    (stuck / "metrics.jsonl").write_text("{}\n")

    def denied(path: Path) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("client_agent.study.asked.deleting._sha256", denied)
    left, failed, other, _ = ended(settings, "2999-04-01T00:00:00")
    assert "this site has left it" in left
    assert failed.startswith("study aaa: ")
    assert "Permission denied" in failed
    assert "this site has left it" in other
    (stuck / "left.txt").write_bytes(b"half a letter: \xc3")
    monkeypatch.undo()
    (deleted,) = ended(settings, "2999-04-01T01:00:00")
    assert "1 files are deleted" in deleted
    assert not (stuck / "metrics.jsonl").exists()


def test_a_deletion_that_a_full_disk_broke_off_goes_on_within_the_hour(
    config: Path, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt was there, and no file to delete: only site.json still had its keys, and nobody came back."""
    journal(config).write_site_state(
        SiteState(study_digest=STUDY.digest(), training_seed=7, site_key="ab" * 32, finished="done", refused=True)
    )

    def full(*_: object, **__: object) -> None:
        raise StorageFull("no space left for audit.jsonl")

    with monkeypatch.context() as patch:
        patch.setattr(AuditLog, "add", full)
        (failed,) = ended(settings, "2999-04-01T00:00:00")
    assert "no space left for audit.jsonl" in failed
    said = ended(settings, "2999-04-01T01:00:00")
    assert said == [
        "study unit: this goes on with the deletion that software asked for and that was not ended",
        "study unit: the permit ended on 2999-03-31; 0 files are deleted",
    ]
    state = journal(config).site_state()
    assert state is not None
    assert state.site_key is None
    assert read_audit(settings.state_dir / AUDIT)[-1].action is Action.DELETED
    assert ended(settings, "2999-04-01T02:00:00") == []


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
    word = approval_of(journal(config), STUDY.digest())
    assert word is not None
    assert word.until == LAST_DAY
