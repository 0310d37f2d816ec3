"""``moiety bench idle``: what a window says of a day, in bytes at the socket and on the disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_agent.network.ledger import LedgerEntry
from harness.bench import idle
from harness.bench.cli import app
from harness.bench.idle import IdleBenchmark, a_day_on_disk, idle_text, summary


def polls(count: int, purpose: str = "list studies") -> list[LedgerEntry]:
    return [
        LedgerEntry(
            time_s=float(number),
            server="operator-a",
            method="POST",
            path="/v1/sealed",
            purpose=purpose,
            status=200,
            body_sent_bytes=1500,
            body_received_bytes=1500,
            socket_sent_bytes=2000,
            socket_received_bytes=3000,
            tls_version="TLSv1.3",
        )
        for number in range(count)
    ]


def test_a_window_is_scaled_to_a_day() -> None:
    found = summary([*polls(4), *polls(1, "handshake")], 9, 120.0, 70_000.0)
    assert (found.requests_per_day, found.bytes_up_per_day) == (5 * 720, 5 * 720 * 2000)
    assert found.bytes_down_per_day == 5 * 720 * 3000
    assert found.requests_by_purpose == {"list studies": 4, "handshake": 1}
    assert "3,600 a day" in idle_text(found)
    assert "up 7.20, down 10.80" in idle_text(found)


@pytest.mark.parametrize("per_window", [4, 40])
def test_a_days_ledger_hardly_grows_with_how_often_the_agent_asks(per_window: int, tmp_path: Path) -> None:
    """A line an hour, and two hours line by line: a day of one line an exchange would be ten times as much."""
    raw_bytes = 720 * per_window * (len(polls(1)[0].line()) + 1)
    noted_bytes = a_day_on_disk(polls(per_window), 120.0, tmp_path / "day")
    assert noted_bytes < raw_bytes / 9
    assert noted_bytes > raw_bytes / 24


def test_the_command_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(past_studies: int, seconds: float, folder: Path | None) -> IdleBenchmark:
        return summary(polls(2), past_studies, seconds, 1234.0)

    monkeypatch.setattr(idle, "benchmark_idle", measured)
    figures = tmp_path / "idle.json"
    arguments = ["idle", "--past-studies", "3", "--seconds", "60", "--json", str(figures)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "3 past ones, 60 s" in done.stdout
    found = json.loads(figures.read_text())
    assert (found["requests_per_day"], found["ledger_bytes_per_day"]) == (2880.0, 1234.0)
    assert found["command"] == "moiety bench idle --past-studies 3 --seconds 60"
