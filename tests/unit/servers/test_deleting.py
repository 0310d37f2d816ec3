"""A server deletes what it holds of a study that is over: files and secrets go, receipts of sites stay."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from host.audit_log import AUDIT, Action, read_audit
from host.folder_lock import one_process
from protocol.errors import ConfigurationError, StorageFull, Unavailable, WrongRound
from protocol.messages.control import (
    EndCause,
    PrivacySpec,
    RoundState,
    Signed,
    Study,
    StudyEnd,
    StudyEndState,
    StudyState,
    check_signature,
    sign,
)
from protocol.messages.study import DeletedFile, ServerDeletionReceipt
from servers import studies
from servers.background import deletion as keeping
from servers.background.deletion import FOLDER, Deletion, Request, Unfinished, aged, answer_requests, ask, receipt_path
from servers.cli import app
from servers.server import Server
from servers.store.records import Answer, AnswerKind, Holdings, MailRecord
from tests.contract.records import KEY, RECORD, ROUND, contribution
from tests.kit.in_process import opened_server
from tests.kit.present import present
from tests.kit.processes import Federation

# --- deleting ---------------------------------------------------------------------------------------------------------

FILES = {"share-1": b"share", "output-1": b"output", "letter-1": b"a sealed letter"}


@dataclass(frozen=True)
class Kept:
    """A server with one study, and where its settings lie."""

    server: Server
    config: Path

    @property
    def data_dir(self) -> Path:
        return self.server.settings.data_dir

    def end(self, at_s: float = 0.0) -> None:
        self.server.store.change_study(RECORD.digest, lambda r: replace(r, state=StudyState.COMPLETED))
        log = replace(self.server.audit, clock=lambda: at_s)
        log.add(Action.STUDY_ENDED, "finished", study="trial", study_digest=RECORD.digest)

    def asked(self) -> list[Path]:
        return list((self.data_dir / FOLDER).glob("*.asked.json"))

    def command(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["delete", *arguments, "--config", str(self.config)])

    def answer_requests(self) -> None:
        asyncio.run(answer_requests(self.server))

    def command_beside_the_server(self, meanwhile: Callable[[], None]) -> Result:
        """The command's result; ``meanwhile`` is done again and again until it has ended."""
        with ThreadPoolExecutor(1) as threads, one_process(self.data_dir, "data_dir", "the server"):
            said = threads.submit(self.command, "trial", "--person", "Dr. O")
            while not said.done():
                meanwhile()
                wait([said], 0.01)
            return said.result()


@pytest.fixture
def kept(config: Path) -> Iterator[Kept]:
    with opened_server(config) as server:
        store = server.store
        store.add_study(RECORD)
        store.add_round(replace(ROUND, own_nonce=b"n" * 32, mask_seed=b"m" * 32, output_file="output-1"))
        store.add_contribution(contribution("site-b"), RoundState.COLLECTING)
        store.change_round(KEY, lambda r: r, answers=[Answer(AnswerKind.OPENING, "", b"sealed")])
        store.add_mail(MailRecord(RECORD.digest, "site-a", "site-b", "model-1", "55" * 32, "letter-1"))
        for name, content in FILES.items():
            server.files.path(name).write_bytes(content)
        (server.files.path("another")).write_bytes(b"of another study")
        yield Kept(server, config)


def test_files_letters_answers_and_secrets_go_and_what_was_signed_stays(kept: Kept) -> None:
    kept.end()
    said = kept.command("trial", "--person", "Dr. O", "--reason", "permit 7 ended")
    assert said.exit_code == 0, said.output
    assert "3 files of 26 bytes, 1 letters, 1 answers and the seeds of 1 attempts are deleted" in said.stdout
    signed = Signed[ServerDeletionReceipt].parse(receipt_path(kept.data_dir, "trial").read_bytes())
    receipt = signed.message
    check_signature(receipt, signed.signatures[0], kept.server.roster.operator_a)
    assert {one.path: one.sha256 for one in receipt.files} == {
        f"shares/{name}": hashlib.sha256(content).hexdigest() for name, content in FILES.items()
    }
    assert (receipt.person, receipt.reason, receipt.operator) == ("Dr. O", "permit 7 ended", kept.server.name)
    assert sorted(path.name for path in (kept.data_dir / "shares").iterdir()) == ["another"]
    store = kept.server.store
    assert store.answer(KEY, AnswerKind.OPENING) is None
    assert store.mail_for(RECORD.digest, ["site-b"]) == []
    found = present(store.round(KEY))
    assert (found.own_nonce, found.mask_seed, found.output_file) == (None, None, None)
    assert found.announcement == ROUND.announcement
    assert store.contribution(KEY, "site-b") == contribution("site-b", file=None)
    assert store.study(RECORD.digest).cursor > RECORD.cursor
    last = read_audit(kept.data_dir / AUDIT)[-1]
    assert (last.action, last.actor, last.study) == (Action.DELETED, "Dr. O", "trial")
    assert receipt.digest() in last.detail
    again = kept.command("trial", "--person", "Dr. P", "--json")
    assert Signed[ServerDeletionReceipt].model_validate_json(again.stdout) == signed


@pytest.mark.parametrize(
    ("place", "error", "by_a_server"),
    [
        ("servers.store.files.ShareFiles.delete", ZeroDivisionError(), False),
        ("servers.store.sql.SqlStore.forget_study", Unavailable("the database is away"), True),
    ],
)
def test_what_broke_off_without_a_server_is_ended_by_the_next_try_or_the_next_server(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception, by_a_server: bool
) -> None:
    kept.end()
    with monkeypatch.context() as patch:
        patch.setattr(place, _raising(error))
        assert isinstance(kept.command("trial", "--person", "Dr. O").exception, type(error))
    assert (kept.data_dir / "shares" / "share-1").exists()
    if by_a_server:
        kept.answer_requests()
    else:
        assert kept.command("trial", "--person", "Dr. O").exit_code == 0
    assert not (kept.data_dir / "shares" / "share-1").exists()
    assert [path.name for path in (kept.data_dir / FOLDER).iterdir()] == ["trial.json"]


@pytest.mark.parametrize(
    ("study", "person", "why"),
    [("trial", "Dr. O", "is open here"), ("none", "Dr. O", "no study 'none'"), ("trial", " ", "name of the person")],
)
def test_nothing_is_deleted_under_way_unknown_or_unnamed(kept: Kept, study: str, person: str, why: str) -> None:
    refused = kept.command(study, "--person", person).exception
    assert isinstance(refused, ConfigurationError)
    assert why in refused.detail
    assert not (kept.data_dir / FOLDER).exists()
    assert all((kept.data_dir / "shares" / name).exists() for name in FILES)


def test_a_server_that_runs_does_it_itself(kept: Kept) -> None:
    kept.end()
    said = kept.command_beside_the_server(kept.answer_requests)
    assert said.exit_code == 0, said.output
    assert not (kept.data_dir / "shares" / "share-1").exists()
    assert [path.name for path in (kept.data_dir / FOLDER).iterdir()] == ["trial.json"]


def test_a_request_that_is_none_or_is_refused_is_taken_away(kept: Kept) -> None:
    broken = ask(kept.data_dir, Request("broken", "Dr. O"))
    broken.write_bytes(b"{}")
    refused = ask(kept.data_dir, Request("trial", "Dr. O"))
    kept.answer_requests()
    assert not broken.exists()
    assert not refused.exists()
    assert (kept.data_dir / "shares" / "share-1").exists()


def test_a_server_that_does_not_answer_is_named_and_the_request_stays(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.end()
    monkeypatch.setattr("servers.cli._DELETION_WITHIN_S", 0.01)
    with one_process(kept.data_dir, "data_dir", "the server"):
        refused = kept.command("trial", "--person", "Dr. O").exception
    assert isinstance(refused, Unavailable)
    assert "see its log" in refused.detail.lower()
    assert [path.name for path in (kept.data_dir / FOLDER).iterdir()] == ["trial.asked.json"]


def test_what_the_server_refuses_is_said_at_once(kept: Kept) -> None:
    """The study was over when somebody asked, and the server's database is an older one by then."""
    kept.end()

    def reopened() -> None:
        if kept.asked():
            kept.server.store.change_study(RECORD.digest, lambda r: replace(r, state=StudyState.OPEN))
            kept.answer_requests()

    refused = kept.command_beside_the_server(reopened).exception
    assert isinstance(refused, ConfigurationError)
    assert "refused" in refused.detail


BROKEN_OFF = {
    "the database is away": ("servers.store.sql.SqlStore.forget_study", Unavailable("the database does not answer")),
    "the disk is full": ("host.audit_log.AuditLog.add", StorageFull("no space left for audit.jsonl")),
    "the storage is away": ("servers.store.files.ShareFiles.delete", Unavailable("the storage is away")),
    "a disk fails": ("servers.store.files.ShareFiles.delete", OSError(5, "Input/output error")),
    "a bug": ("servers.store.files.ShareFiles.delete", ZeroDivisionError()),
    "the log is none": ("host.audit_log.AuditLog.add", ConfigurationError("audit.jsonl is no audit log")),
    "no receipt": ("servers.background.deletion.write_durably", StorageFull("no space left for trial.json")),
}


@pytest.mark.parametrize("why", BROKEN_OFF)
def test_what_broke_off_is_gone_on_with_until_all_is_gone(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """The command says nothing of a deletion before; the audit log has it once, in the name of whoever asked."""
    kept.end()
    place, error = BROKEN_OFF[why]
    asked = ask(kept.data_dir, Request("trial", "Dr. O", "permit 7 ended"))
    with monkeypatch.context() as patch, capture_logs():
        patch.setattr(place, _raising(error))
        patch.setattr("servers.cli._DELETION_WITHIN_S", 0.2)
        patch.setattr("servers.cli._DELETION_SAID_AFTER_S", 0.0)
        for _ in range(3):
            kept.answer_requests()
        assert asked.exists()
        said = kept.command_beside_the_server(kept.answer_requests)
    assert isinstance(said.exception, Unavailable), said.output
    assert "has not deleted all" in said.output or why == "no receipt"
    kept.server.settings = kept.server.settings.model_copy(update={"delete_ended_after_days": 30})
    assert list(aged(kept.server)) == []
    kept.answer_requests()
    assert not asked.exists()
    assert sorted(path.name for path in (kept.data_dir / "shares").iterdir()) == ["another"]
    assert kept.server.store.holds_of(RECORD.digest) == Holdings((), 0, 0, 0)
    assert [entry.actor for entry in read_audit(kept.data_dir / AUDIT) if entry.action is Action.DELETED] == ["Dr. O"]


def _raising(error: Exception) -> Callable[..., None]:
    def raising(*_: object, **__: object) -> None:
        raise error

    return raising


def test_files_are_read_beside_the_loop_and_what_changes_meanwhile_is_in_the_receipt(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.end()
    reads, goes_on, described = threading.Event(), threading.Event(), Deletion.described

    def slowly(deletion: Deletion, held: Holdings) -> tuple[DeletedFile, ...]:
        found = described(deletion, held)
        reads.set()
        assert goes_on.wait(20.0), "the loop stands still while files are read"
        return found

    async def meanwhile() -> None:
        task = asyncio.create_task(answer_requests(kept.server))
        while not reads.is_set():
            await asyncio.sleep(0.01)
        kept.server.store.forget_mail(kept.server.store.mail_for(RECORD.digest, ["site-b"]))
        goes_on.set()
        await task

    monkeypatch.setattr(Deletion, "described", slowly)
    ask(kept.data_dir, Request("trial", "Dr. O"))
    asyncio.run(meanwhile())
    receipt = Signed[ServerDeletionReceipt].parse(receipt_path(kept.data_dir, "trial").read_bytes()).message
    assert receipt.letters == 0
    assert sorted(Path(one.path).name for one in receipt.files) == ["output-1", "share-1"]


def test_a_request_that_cannot_be_read_keeps_no_other_one(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left by root, for instance, beside a server of another user."""
    kept.end()
    of_root, whole = ask(kept.data_dir, Request("another", "Dr. O")), Path.read_bytes

    def read(path: Path) -> bytes:
        if path == of_root:
            raise PermissionError(13, "Permission denied")
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    ask(kept.data_dir, Request("trial", "Dr. O"))
    with capture_logs() as logs:
        kept.answer_requests()
    assert receipt_path(kept.data_dir, "trial").exists()
    assert of_root.exists()
    (line,) = (line for line in logs if line["event"] == "not_deleted")
    assert line["file"] == "another.asked.json"
    assert "Permission denied" in line["detail"]
    assert "chown" in line["detail"]


def test_a_folder_of_another_user_is_named(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.end()
    asked = ask(kept.data_dir, Request("trial", "Dr. O"))
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr("servers.background.deletion.os.access", lambda *_: False)
        kept.answer_requests()
    assert [line["event"] for line in logs] == ["not_deleted"]
    assert "chown" in logs[0]["detail"]
    assert asked.exists()


def test_studies_go_by_themselves_once_they_are_over_for_long_enough(kept: Kept) -> None:
    day_s, server = 86400.0, kept.server
    kept.end(at_s=10 * day_s)
    server.settings = server.settings.model_copy(update={"delete_ended_after_days": 30})
    server.clock = lambda: 40 * day_s - 1
    assert list(aged(server)) == []
    server.clock = lambda: 40 * day_s
    (due,) = aged(server)
    assert (due.study, due.person) == ("trial", "software")
    ask(kept.data_dir, due)
    asyncio.run(answer_requests(server))
    assert receipt_path(kept.data_dir, "trial").exists()
    assert list(aged(server)) == []
    server.settings = server.settings.model_copy(update={"delete_ended_after_days": None})
    assert list(aged(server)) == []


# --- study ends -------------------------------------------------------------------------------------------------------

ROUND_FILES = ("share-1", "query-1", "output-1")
_away = _raising(Unavailable("the database does not answer"))
SECOND_STEPS = (
    "servers.store.sql.SqlStore.forget_share_files",
    "servers.store.sql.SqlStore.change_round",
    "servers.store.upload_parts.UploadParts.keep_only",
)


@dataclass(frozen=True)
class Ending:
    """A server whose study is in a round with a sum that nobody was served, and what its requester says."""

    server: Server
    said: Signed[StudyEnd]

    def end(self) -> Signed[StudyEnd]:
        return studies.end(self.server, self.server.store.study(RECORD.digest), self.said)

    def broken_off(self, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(place, _away)
            with pytest.raises(Unavailable):
                self.end()
        assert self.server.store.study(RECORD.digest).end == self.said
        assert "output-1" in self.named()

    def named(self) -> set[str]:
        return self.server.store.files()

    def require_nothing_left(self) -> None:
        assert self.named() == set()
        assert [one.name for one in (self.server.settings.data_dir / "shares").iterdir()] == []
        assert self.server.store.answer(KEY, AnswerKind.OPENING) is None


@pytest.fixture
def ending(prepared: Federation, config: Path) -> Iterator[Ending]:
    with opened_server(config) as server:
        store = server.store
        store.add_study(RECORD)
        store.add_round(replace(ROUND, query_file="query-1"))
        store.add_contribution(contribution("site-b"), RoundState.COLLECTING)
        committed = replace(ROUND, state=RoundState.COMMITTED, query_file="query-1", output_file="output-1")
        store.change_round(KEY, lambda _: committed, answers=[Answer(AnswerKind.OPENING, "", b"sealed")])
        for name in ROUND_FILES:
            server.files.path(name).write_bytes(b"half of a sum")
        reason = StudyEnd(
            study_digest=RECORD.digest, state=StudyEndState.CANCELLED, cause=EndCause.CANCELLED, reason="not needed"
        )
        requester = prepared.keys(server.roster.requester)
        yield Ending(server, sign(reason, requester.name, requester.signing))


@pytest.mark.parametrize("place", SECOND_STEPS)
def test_the_end_said_again_takes_what_is_left(ending: Ending, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    ending.broken_off(monkeypatch, place)
    assert ending.end() == ending.said
    ending.require_nothing_left()
    assert ending.end() == ending.said


@pytest.mark.parametrize("place", SECOND_STEPS)
def test_nobody_need_say_it_again(ending: Ending, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """At the start of a server and every hour; where that fails too, the next look tries again."""
    ending.broken_off(monkeypatch, place)
    unfinished = Unfinished(ending.server)
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(place, _away)
        asyncio.run(unfinished.forget())
    assert [line["event"] for line in logs] == ["end_not_finished"]
    assert "output-1" in ending.named()
    asyncio.run(unfinished.forget())
    ending.require_nothing_left()


def test_a_server_that_starts_looks_first_of_all(ending: Ending, monkeypatch: pytest.MonkeyPatch) -> None:
    ending.broken_off(monkeypatch, SECOND_STEPS[0])

    async def looks() -> None:
        keeps = asyncio.create_task(keeping.keep_to_retention(ending.server))
        while ending.named():
            await asyncio.sleep(0.01)
        keeps.cancel()

    asyncio.run(asyncio.wait_for(looks(), 20.0))
    ending.require_nothing_left()


def test_a_study_that_goes_on_keeps_everything(ending: Ending) -> None:
    asyncio.run(Unfinished(ending.server).forget())
    assert ending.named() == set(ROUND_FILES)


def test_a_study_that_an_older_version_began_does_not_go_on_and_can_be_ended(ending: Ending) -> None:
    """Its sums would have had noise of the servers: this version would open them without."""
    server, now = ending.server, ending.server.store.study(RECORD.digest)
    assert now.goes_on
    old = now.study.model_copy(update={"privacy": PrivacySpec(unit="site", noise_multiplier=2.0)})
    begun = replace(now, signed=Signed[Study](message=old))
    server.store.change_study(RECORD.digest, lambda _: begun)
    assert not server.store.study(RECORD.digest).goes_on
    with pytest.raises(WrongRound, match=r"moiety study cancel.*privacy.unit 'site'.*take unit = 'record'"):
        studies.going_study(server, old.name)
    ending.end()
    assert studies.going_study(server, old.name).state.ended
