"""``moiety lab bench load``, ``idle`` and ``latency``: calls, windows, round trips, the page, and one tiny run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from client_agent.net.ledger import LedgerEntry
from client_agent.site.events import RoundEnd, RoundRecord
from harness.bench import latency
from harness.bench.cli import app
from harness.bench.latency import IdleBenchmark, a_day_on_disk, delayed_rounds, summary
from harness.bench.load import LoadBenchmark, Rounds, found_errors, slopes
from harness.bench.load_agents import Calls, Played, TimedTransport, called
from tests.unit.harness.test_bench import published


class Body(httpx.SyncByteStream):
    def __init__(self, error: httpx.HTTPError | None) -> None:
        self._error = error

    def __iter__(self) -> Iterator[bytes]:
        yield b"half"
        if self._error is not None:
            raise self._error


class Answering(httpx.BaseTransport):
    """One answer after the other, or an error in place of one."""

    def __init__(self, *answers: int | httpx.HTTPError, broken: httpx.HTTPError | None = None) -> None:
        self._answers = list(answers)
        self._broken = broken

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._answers.pop(0)
        if isinstance(answer, httpx.HTTPError):
            raise answer
        return httpx.Response(answer, stream=Body(self._broken))


def asked(calls: Calls, transport: httpx.BaseTransport, purpose: str) -> None:
    with httpx.Client(transport=TimedTransport(transport, calls)) as client:
        client.get("https://a.example/", extensions={"purpose": purpose})


def test_every_call_is_noted_once_by_what_it_is_for() -> None:
    calls = Calls()
    for number in (1, 2):
        asked(calls, Answering(200), f"mail weights-{number}")
    asked(calls, Answering(503), "view")
    with pytest.raises(httpx.ConnectError):
        asked(calls, Answering(httpx.ConnectError("nobody")), "view")
    with pytest.raises(httpx.ReadTimeout):
        asked(calls, Answering(200, broken=httpx.ReadTimeout("slow")), "output")
    assert [len(taken) for taken in calls.milliseconds.values()] == [2]
    assert set(calls.milliseconds) == {"mail weights-N"}
    assert calls.failed == {"view: status 503": 1, "view: ConnectError": 1, "output: ReadTimeout": 1}
    calls.close()
    asked(calls, Answering(503), "view")  # an agent that is stopped breaks off what it asks
    assert sum(calls.failed.values()) == 3


def test_percentiles_of_calls() -> None:
    view = {"view": [1.0, 2.0], "never": []}
    first, second = called([view, {"output": [float(n) for n in range(1, 102)]}])
    assert (first.purpose, first.count, first.p50_ms, first.p95_ms, first.p99_ms) == ("output", 101, 51, 96, 100)
    assert (second.most_ms, second.purpose) == (2.0, "view")


def played(problems: tuple[str, ...] = (), failed: dict[str, int] | None = None) -> Played:
    return Played(milliseconds={"output": [5.0]}, failed=failed or {}, problems=problems)


def record(number: int, state: RoundEnd) -> RoundRecord:
    return RoundRecord(time_s=1.0, study="load", site="requester", round=number, state=state, model_version=number)


def test_complaints_failed_calls_and_rounds_without_a_sum_are_errors() -> None:
    done = Rounds((record(1, RoundEnd.RELEASED), record(2, RoundEnd.SKIPPED)), ())
    both = [played(("site-1: unavailable: no",)), played(("site-2: unavailable: no",), {"view: status 503": 2})]
    assert found_errors(done, both, 1) == {
        "unavailable: no": 2,
        "view: status 503": 2,
        "rounds without a sum": 1,
        "internal errors of servers": 1,
    }
    assert found_errors(Rounds(done.records[:1], ()), [played()], 0) == {}
    assert called([one.milliseconds for one in both])[0].count == 2


def test_what_grows_is_a_straight_line_through_the_rounds_that_count() -> None:
    """A fifth of the rounds is left out at first, and the sample after the study's end."""
    study = published(LoadBenchmark, "load_20")
    odd = (0, 1, 4, 20)
    samples = tuple(
        one.model_copy(update={"seconds": 2.0 * n, "open_files": 999 if n in odd else 10 + 3 * n})
        for n, one in enumerate(study.samples)
    )
    found = {one.what: one for one in slopes(samples)}
    files = found["open files"]
    assert (files.per_round, files.first, files.last) == pytest.approx((3.0, 26.5, 65.5))
    assert found["seconds of a round"].per_round == pytest.approx(0.0)
    assert found["seconds of a round"].last == 2.0
    assert "| open files |" in study.section()
    assert "| open files |" not in study.model_copy(update={"rounds": 19}).section()


@pytest.mark.soak
def test_one_run_holds_a_study_and_counts(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    numbers = ["--sites", "3", "--parameters", "50", "--rounds", "2", "--processes", "2"]
    done = CliRunner().invoke(app, ["load", *numbers, "--out", str(file), "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = LoadBenchmark.model_validate(json.loads(file.read_text(encoding="utf-8")))
    assert (found.released, found.errors) == (2, {})
    assert {"contribution", "output", "view"} <= {call.purpose for call in found.calls}
    assert found.server_cpu_ms_per_site_round > 0
    assert found.rows["contributions"] == 2 * 2 * 4
    assert [path.name for path in tmp_path.iterdir()] == ["load.json"]  # nothing stays behind


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


@pytest.mark.parametrize("per_window", [15, 60])
def test_a_days_ledger_hardly_grows_with_how_often_the_agent_asks(per_window: int, tmp_path: Path) -> None:
    """A line an hour, and two hours line by line: a day of one line an exchange would be ten times as much."""
    raw_bytes = 144 * per_window * (len(polls(1)[0].line()) + 1)
    noted_bytes = a_day_on_disk(polls(per_window), 600.0, tmp_path / "day")
    assert noted_bytes < raw_bytes / 9
    assert noted_bytes > raw_bytes / 24


def test_the_command_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(past_studies: int, seconds: float, folder: Path | None) -> IdleBenchmark:
        return summary(polls(2), past_studies, seconds, 1234.0)

    monkeypatch.setattr(latency, "benchmark_idle", measured)
    figures = tmp_path / "idle.json"
    arguments = ["idle", "--past-studies", "3", "--seconds", "60", "--out", str(figures)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "- past studies: 3\n- seconds: 60\n" in done.stdout
    found = json.loads(figures.read_text())
    assert (found["requests_per_day"], found["ledger_bytes_per_day"]) == (2880.0, 1234.0)
    assert found["command"] == "moiety lab bench idle --past-studies 3 --seconds 60"


def test_a_round_waits_for_a_fixed_number_of_round_trips_and_little_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "_DELAYED_ROUNDS", 2)
    measured, summed = delayed_rounds((200.0,))
    for one in (measured, summed):
        assert one.round_trips is not None
        assert 8 < one.round_trips < 24
        assert one.waited_s < 1.2 * one.round_trips * 0.2
    assert (measured.rule, summed.rule) == ("weight_erosion", "fedavg")


def test_delays_are_milliseconds() -> None:
    for wrong in ("twenty", "-1", "0,9999999", ""):
        found = CliRunner().invoke(app, ["latency", "--delays", wrong])
        assert found.exit_code == 2, wrong
