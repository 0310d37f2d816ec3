"""The ledger is summed by the hour and bounded, and no crash, no other process and no clock changes its totals."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from client_agent.cli.agent_work import show_ledger
from client_agent.net import ledger as ledger_files
from client_agent.net.ledger import Ledger, LedgerEntry, Totals, hourly, read_ledger
from protocol.errors import ConfigurationError, StorageFull

BEGAN_S = 500_000 * 3600.0
HOUR_S = 3600.0


def entry(at_s: float, purpose: str = "list studies", sent: int = 10, server: str = "op-a") -> LedgerEntry:
    return LedgerEntry(
        time_s=BEGAN_S + at_s,
        server=server,
        method="POST",
        path="/v1/sealed",
        purpose=purpose,
        status=200,
        body_sent_bytes=sent // 2,
        body_received_bytes=3,
        socket_sent_bytes=sent,
        socket_received_bytes=7,
        tls_version="TLSv1.3",
    )


def totals_of(entries: list[LedgerEntry]) -> Totals:
    found = Totals()
    for one in entries:
        found = found.with_entry(one)
    return found


def read_totals(path: Path) -> Totals:
    return totals_of(list(read_ledger(path)))


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def a_day(every_s: int) -> list[LedgerEntry]:
    """Polls at both servers, and now and then a contribution."""
    made = [entry(at_s, server=f"op-{'ab'[at_s // every_s % 2]}") for at_s in range(0, 24 * 3600, every_s)]
    made += [entry(at_s + 0.5, "contribution", 100_000 + at_s) for at_s in range(0, 24 * 3600, 7200)]
    return sorted(made, key=lambda one: one.time_s)


def test_a_day_of_polls_is_a_few_lines_an_hour_and_every_byte_is_there(tmp_path: Path) -> None:
    path, day = tmp_path / "ledger.jsonl", a_day(10)
    ledger = Ledger(path)
    for one in day:
        ledger.append(one)
    assert ledger.totals == totals_of(day)
    ledger.close()
    assert read_totals(path) == totals_of(day)
    again = Ledger(path)
    assert again.totals == totals_of(day)
    again.close()
    found = read_ledger(path)
    sums, rest = [one for one in found if one.count > 1], [one for one in found if one.count == 1]
    assert {one.count for one in sums} == {180}
    assert len(sums) == 22 * 2, "an hour and server each, but for the last two hours"
    assert [one.socket_sent_bytes for one in rest if one.purpose == "contribution"] == [
        one.socket_sent_bytes for one in day if one.purpose == "contribution"
    ]
    assert all(one.last_s is not None and one.last_s - one.time_s == 3580 for one in sums)
    raw_bytes = sum(len(one.line()) + 1 for one in day)
    assert size_bytes(tmp_path) < raw_bytes / 8


class Died(BaseException):
    """As kill -9: nothing after it runs."""


@pytest.mark.parametrize("number", range(8))
def test_what_dies_while_lines_move_neither_loses_nor_doubles_any(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies at the ``number``th time that something is made durable, with some of it written; then goes on."""
    path = tmp_path / "ledger.jsonl"
    monkeypatch.setattr(ledger_files, "MOST_BYTES", 3000)
    appended, synced, real = list[LedgerEntry](), 0, os.fsync

    def dies(handle: int) -> None:
        nonlocal synced
        synced += 1
        if synced == 6 + number:
            raise Died
        real(handle)

    monkeypatch.setattr(os, "fsync", dies)
    ledger, died = Ledger(path), 0
    for hour in range(12):
        for minute in (0, 20, 40):
            for purpose in ("list studies", "output"):
                appended.append(entry(hour * HOUR_S + minute * 60, purpose, sent=hour + minute + 1))
                try:
                    ledger.append(appended[-1])
                except Died:  # the line itself was written before lines moved
                    died += 1
                    ledger.close()
                    assert read_totals(path) == totals_of(appended)
                    ledger = Ledger(path)
                    assert ledger.totals == totals_of(appended)
    assert died == 1
    ledger.close()
    assert read_totals(path) == totals_of(appended)


def test_the_folder_of_an_earlier_version_is_read_taken_in_and_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds sums, whole files, and lines that were being added as the process died and are in the newest part."""
    path, folder = tmp_path / "ledger.jsonl", tmp_path / "ledger"
    old = [entry(number * HOUR_S, f"mail q-{number}x") for number in range(5)]
    lines = [one.line() + b"\n" for one in old]
    folder.mkdir()
    (folder / "earlier.jsonl").write_bytes(b'{"through":1}\n' + lines[0])
    (folder / "000001.jsonl").write_bytes(lines[0])
    (folder / "000002.jsonl").write_bytes(lines[1])
    (folder / "000003.jsonl").write_bytes(lines[2] + lines[3])
    head = json.dumps({"file": 3, "in_bytes": len(lines[2])}).encode() + b"\n"
    path.write_bytes(head + lines[3] + lines[4])
    assert read_ledger(path) == tuple(old)
    ledger, appended = Ledger(path), [*old]
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_, **__: None)  # dies between the rename and the deletion
        for hour in range(10, 14):
            appended.append(entry(hour * HOUR_S))
            ledger.append(appended[-1])
    ledger.close()
    assert folder.exists()
    assert read_totals(path) == totals_of(appended)
    ledger = Ledger(path)
    ledger.append(entry(20 * HOUR_S))
    ledger.close()
    assert not folder.exists()
    assert read_totals(path) == totals_of([*appended, entry(20 * HOUR_S)])


def test_a_line_that_a_crash_cut_off_is_not_counted_and_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(entry(0).line() + b"\n" + entry(1).line()[:40])
    assert read_totals(path) == totals_of([entry(0)])
    ledger = Ledger(path)
    ledger.append(entry(2))
    ledger.close()
    assert read_ledger(path) == (entry(0), entry(2))


def test_a_ledger_of_an_earlier_version_is_summed_too(tmp_path: Path) -> None:
    """One line for every exchange, in one file, with all fields."""
    path, old = tmp_path / "ledger.jsonl", [entry(at_s) for at_s in range(0, 50_000, 50)]
    fields = [one.model_dump(mode="json", exclude={"count", "last_s"}) for one in old]
    path.write_text("".join(json.dumps(one) + "\n" for one in fields))
    ledger = Ledger(path)
    ledger.append(entry(50_000))
    assert ledger.totals == totals_of([*old, entry(50_000)])
    ledger.close()
    assert read_totals(path) == totals_of([*old, entry(50_000)])
    assert len(read_ledger(path)) < 200


def test_the_files_have_a_bound_and_the_sums_of_what_is_gone_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_files, "MOST_BYTES", 120_000)
    path, made, largest = tmp_path / "ledger.jsonl", list[LedgerEntry](), 0
    ledger = Ledger(path)
    for number in range(6000):
        made.append(entry(number * 60.0, f"mail weights-{number:06d}", sent=number))
        ledger.append(made[-1])
        largest = max(largest, size_bytes(tmp_path)) if number % 100 == 0 else largest
    ledger.close()
    assert largest < 120_000
    assert read_totals(path) == totals_of(made)
    first = read_ledger(path)[0]
    assert first.purpose == "mail weights"
    assert (first.count > 1000, first.time_s, first.last_s) == (True, made[0].time_s, made[first.count - 1].time_s)


@pytest.mark.parametrize("json_output", [False, True])
def test_a_folder_that_does_not_exist_has_no_ledger(tmp_path: Path, json_output: bool) -> None:
    """An auditor who mistypes the folder is not told that nothing left the site."""
    with pytest.raises(ConfigurationError, match=r"key 'state_dir': the folder .*mistyped does not exist"):
        show_ledger(tmp_path / "mistyped", json_output=json_output)
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.parametrize("order", ["years ahead and back", "backwards", "shuffled"])
def test_a_clock_that_is_wrong_costs_no_byte_and_no_bound(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_agent.net.ledger.MOST_BYTES", 30_000)
    path, made = tmp_path / "ledger.jsonl", a_day(30)
    if order == "years ahead and back":
        made[100] = made[100].model_copy(update={"time_s": BEGAN_S + 9e8})
    elif order == "backwards":
        made.reverse()
    else:
        random.Random(1).shuffle(made)
    ledger = Ledger(path)
    for one in made:
        ledger.append(one)
        assert path.stat().st_size < 30_000 + 2 * 250
    ledger.close()
    assert read_totals(path) == totals_of(made)


def test_what_finds_a_full_disk_is_noted_once_there_is_room_and_nothing_leaves_before(tmp_path: Path) -> None:
    path, made = tmp_path / "ledger.jsonl", a_day(300)[:20]
    ledger = Ledger(path)
    for one in made[:10]:
        ledger.append(one)
    ledger.require_room()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, before[1]))  # half a line has room
    try:
        for one in made[10:]:
            ledger.append(one)
        with pytest.raises(StorageFull, match="no space left for the ledger"):
            ledger.require_room()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_totals(path) == totals_of(made[:10]), "no part of a line is left there"
    ledger.require_room()
    ledger.close()
    assert read_totals(path) == totals_of(made)


def test_a_full_disk_while_lines_move_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = tmp_path / "ledger.jsonl", a_day(300)
    full = True

    def no_room(handle: int) -> None:
        if full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    ledger = Ledger(path)
    for one in made[:250]:
        ledger.append(one)
    assert read_totals(path) == totals_of(made[:250])
    full = False
    for one in made[250:]:
        ledger.append(one)
    ledger.close()
    assert read_totals(path) == totals_of(made)


APPENDS = """
import sys
from pathlib import Path
from client_agent.net.ledger import Ledger
from tests.unit.client_agent.test_ledger import entry
ledger = Ledger(Path(sys.argv[1]))
for number in range(600):
    ledger.append(entry(number * 60.0, "view", sent=5))
ledger.close()
"""


def test_two_processes_share_a_ledger(tmp_path: Path) -> None:
    """The agent's, and a command's that a person runs beside it: neither's lines are lost when the other moves them."""
    path = tmp_path / "ledger.jsonl"
    other = subprocess.Popen([sys.executable, "-c", APPENDS, str(path)])
    ledger, own = Ledger(path), [entry(number * 60.0, sent=9) for number in range(600)]
    for one in own:
        ledger.append(one)
    ledger.close()
    assert other.wait(60) == 0
    assert read_totals(path) == totals_of([*own, *(entry(number * 60.0, "view", sent=5) for number in range(600))])


def test_alike_is_one_server_purpose_end_and_hour() -> None:
    alike = [entry(0), entry(10), entry(HOUR_S - 1)]
    other: list[Callable[[LedgerEntry], LedgerEntry]] = [
        lambda one: one.model_copy(update={"server": "op-b"}),
        lambda one: one.model_copy(update={"status": None}),
        lambda one: one.model_copy(update={"tls_version": None}),
        lambda one: one.model_copy(update={"time_s": one.time_s + HOUR_S}),
        lambda one: one.model_copy(update={"purpose": "view"}),
    ]
    found = hourly([*alike, *(change(alike[0]) for change in other)])
    assert [one.count for one in found] == [3, 1, 1, 1, 1, 1]
    assert found[0].last_s == alike[2].time_s


def test_the_command_adds_everything_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = [*a_day(60), entry(90_000, "mail weights-000001"), entry(90_001, "mail weights-000002")]
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for one in made:
        ledger.append(one)
    ledger.close()
    show_ledger(tmp_path, json_output=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["server"], line["purpose"], line["entries"]) for line in lines] == [
        ("op-a", "contribution", 12),
        ("op-a", "list studies", 720),
        ("op-a", "mail weights", 2),
        ("op-b", "list studies", 720),
    ]
    assert sum(line["socket_sent_bytes"] for line in lines) == totals_of(made).socket_sent_bytes
    show_ledger(tmp_path, json_output=False)
    assert f"{totals_of(made).socket_sent_bytes:,} bytes sent" in capsys.readouterr().out


def test_lines_that_have_no_file_for_a_while_are_refused_and_later_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has moved the file, and this one has no handle left to open the new one."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append(entry(0))
    path.rename(tmp_path / "moved")

    def no_handle(self: Ledger) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_reopened", no_handle)
        for number in (1, 2):
            with pytest.raises(OSError, match="too many"):
                ledger.append(entry(number))
    ledger.append(entry(3))
    ledger.close()
    assert read_ledger(path) == tuple(entry(number) for number in (1, 2, 3))
