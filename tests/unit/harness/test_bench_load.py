"""``moiety bench load``: what calls take, what counts as an error, the page, and one tiny run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from client_agent.site.events import RoundEnd, RoundRecord
from harness.bench.cli import app
from harness.bench.load import LoadBenchmark, Rounds, Sample, found_errors, load_text
from harness.bench.load_agents import Calls, Played, TimedTransport, called
from harness.bench.report import page_of
from harness.bench.results import write_result
from tests.unit.harness.test_bench import a_result as a_round


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
    assert (second.most_ms, second.named, first.named) == (2.0, "view (waits for news)", "output")


def played(problems: tuple[str, ...] = (), failed: dict[str, int] | None = None) -> Played:
    return Played(milliseconds={"output": [5.0]}, failed=failed or {}, problems=problems, cpu_ns=10**6, peak_mb=100.0)


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


def a_sample(number: int, **changes: object) -> Sample:
    values: dict[str, object] = {}
    values |= dict.fromkeys(Sample.model_fields, 100 * number) | {"round": number}
    return Sample(**(values | changes))


def a_load(**changes: object) -> LoadBenchmark:
    values: dict[str, object] = {
        "parameters": 1000,
        "sites": 20,
        "rounds": 2,
        "processes": 2,
        "command": "moiety bench load --sites 20 --parameters 1000 --rounds 2 --processes 2",
        "date": "2030-01-01 00:00 UTC",
        "machine": "a machine",
        "machine_load": 3.25,
        "released": 2,
        "errors": {},
        "refusals": {"unavailable": 5},
        "seconds": 20.0,
        "round_seconds": (12.0, 8.0),
        "calls": called([{"view": [1.0, 3.0], "output": [7.0]}]),
        "server_cpu_ms_per_site_round": 61.5,
        "agent_cpu_ms_per_site_round": 40.0,
        "server_idle_mb": 130.0,
        "server_peak_mb": 330.0,
        "server_mb_per_site": 10.0,
        "open_files_most": 88,
        "database_bytes_per_site_round": 2500.0,
        "file_bytes_at_end": 10**6,
        "samples": (a_sample(0), a_sample(1), a_sample(2)),
        "rows": {"rounds": 4},
        "versions": {"python": "3.11"},
    }
    return LoadBenchmark(**(values | changes))


def test_the_page_says_what_was_found(tmp_path: Path) -> None:
    text = load_text(a_load(errors={"view: status 503": 2}))
    assert "errors: 2 x view: status 503" in text
    assert "view (waits for news): 2 calls, p50 2" in text
    assert "both servers' CPU, a site and round: 61.5 ms" in load_text(a_load())
    write_result(a_round(), tmp_path / "round_1e6_10.json")
    assert "## Held" not in page_of(tmp_path)
    write_result(a_load(), tmp_path / "load_20.json")
    page = page_of(tmp_path)
    assert "## Held: 20 sites, 1,000 parameters, 2 rounds" in page
    assert "- errors: none\n" in page
    assert "| view (waits for news) | 2 | 2 | 3 | 3 | 3 |" in page


@pytest.mark.soak
def test_one_run_holds_a_study_and_counts(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    numbers = ["--sites", "3", "--parameters", "50", "--rounds", "2", "--processes", "2"]
    done = CliRunner().invoke(app, ["load", *numbers, "--json", str(file), "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = LoadBenchmark.model_validate(json.loads(file.read_text(encoding="utf-8")))
    assert (found.released, found.errors) == (2, {})
    assert {"contribution", "output", "view"} <= {call.purpose for call in found.calls}
    assert found.server_cpu_ms_per_site_round > 0
    assert found.rows["contributions"] == 2 * 2 * 4
    assert [path.name for path in tmp_path.iterdir()] == ["load.json"]  # nothing stays behind
