"""An audit log: chained, one line at a time from several processes, whole after a power cut, read back by anybody."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from host.audit_command import app
from host.audit_log import AUDIT, NOTHING_BEFORE, Action, AuditLog, digest_of, read_audit, require_continued
from protocol.errors import ConfigurationError

NOON_S = 1_769_860_800.0  # 2026-01-31 12:00 UTC


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    found = AuditLog(tmp_path / "state", "c1", lambda: NOON_S)
    found.add(Action.STARTED)
    found.add(Action.APPROVED, "permit 7", actor="Dr. A", study="heart", study_digest="d" * 64)
    found.add(Action.ROUND, "released over c0, c1", study="heart", study_digest="d" * 64, round_number=1)
    return found


def said(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_every_line_names_the_one_before(log: AuditLog) -> None:
    lines = (log.folder / AUDIT).read_bytes().splitlines()
    named = [json.loads(line)["previous"] for line in lines]
    assert named == [NOTHING_BEFORE, digest_of(lines[0]), digest_of(lines[1])]
    assert [entry.number for entry in read_audit(log.folder / AUDIT)] == [1, 2, 3]
    assert (log.folder / AUDIT).stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_changed_taken_out_or_put_in_is_found(log: AuditLog) -> None:
    path = log.folder / AUDIT
    whole = path.read_bytes()
    first, second, third = whole.splitlines(keepends=True)
    for altered in (
        whole.replace(b"Dr. A", b"Dr. B"),
        first + third,
        first + second + second + third,
        second + third,
        first + third + second,
        whole + b"{}\n",
    ):
        path.write_bytes(altered)
        with pytest.raises(ConfigurationError, match="does not follow the one before it"):
            read_audit(path)


def test_a_log_that_was_cut_off_or_made_anew_is_found_by_an_earlier_export(log: AuditLog, tmp_path: Path) -> None:
    export = tmp_path / "export"
    export.write_text(said("export", str(log.folder), "--json"))
    log.add(Action.LEFT, actor="Dr. A", study="heart")
    assert said("verify", str(log.folder), "--against", str(export)).startswith("4 entries, each follows")
    earlier = read_audit(export)
    cut = read_audit(log.folder / AUDIT)[:2]
    with pytest.raises(ConfigurationError, match="entry 3 of there is not in this log as it was"):
        require_continued(cut, earlier, "there")
    anew = AuditLog(tmp_path / "anew", "c1", lambda: NOON_S + 1)
    for _ in range(3):
        anew.add(Action.STARTED)
    with pytest.raises(ConfigurationError, match="entry 1 of there"):
        require_continued(read_audit(anew.folder / AUDIT), earlier, "there")


def test_what_a_power_cut_left_of_a_line_is_cut_off(log: AuditLog) -> None:
    path = log.folder / AUDIT
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[0][:40])
    assert log.add(Action.RESUMED, study="heart").number == 4
    assert len(read_audit(path)) == 4
    path.write_bytes(whole.splitlines()[0][:40])
    assert log.add(Action.STARTED).number == 1


def test_a_file_of_another_kind_is_left_as_it_is(log: AuditLog) -> None:
    path = log.folder / AUDIT
    for other in (b"notes\n", b"x" * 100_000 + b"\n"):
        path.write_bytes(other)
        with pytest.raises(ConfigurationError, match="is no audit log: move it away"):
            log.add(Action.STARTED)
        assert path.read_bytes() == other


def test_processes_beside_each_other_make_one_chain(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from host.audit_log import Action; from host.audit_log import AuditLog\n"
        "for number in range(30): AuditLog(Path(sys.argv[1]), sys.argv[2]).add(Action.STARTED, str(number))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "state")]
    running = [subprocess.Popen([*command, name]) for name in ("one", "two")]
    assert [process.wait(60) for process in running] == [0, 0]
    entries = read_audit(tmp_path / "state" / AUDIT)
    assert len(entries) == 60
    assert [entry.detail for entry in entries if entry.party == "one"] == [str(number) for number in range(30)]


def test_an_export_is_by_study_person_kind_and_time(log: AuditLog) -> None:
    folder = str(log.folder)
    assert said("export", folder, "--study", "heart", "--actor", "Dr. A").splitlines() == [
        f"2 2026-01-31 12:00:00 Dr. A at c1 ({read_audit(log.folder / AUDIT)[0].version}) heart approved: permit 7"
    ]
    assert len(said("export", folder, "--study", "heart").splitlines()) == 2
    assert len(said("export", folder, "--action", "round").splitlines()) == 1
    assert len(said("export", folder, "--since", "2026-01-31", "--until", "2026-02-01").splitlines()) == 3
    assert said("export", folder, "--since", "2026-01-31T12:00:01") == ""
    assert said("export", folder, "--until", "2026-01-31T12:00+00:00") == ""
    for words, message in (
        (("export", folder, "--since", "soon"), "option --since: found 'soon'"),
        (("export", f"{folder}/none"), "does not exist: name the state_dir"),
        (("verify", folder, "--against", __file__), "is no export of"),
    ):
        refused = CliRunner().invoke(app, words)
        assert message in str(refused.exception)


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_audit(tmp_path / AUDIT) == ()
