"""The page on reliability: made of the files that are there, with what failed, and with what was not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.bench.load import LoadBenchmark, Sample, load_text, slopes
from harness.papers.reliability.counts import (
    AGAIN,
    ENDURANCE,
    FAULTS,
    INPUTS,
    REQUESTS,
    TESTS,
    Crash,
    DecoderCount,
    FuzzedInputs,
    FuzzedRequests,
    read_soak,
)
from harness.papers.reliability.reliability import ReliabilityPage
from protocol.errors import ConfigurationError
from tests.unit.harness.test_bench_load import a_load

PAGE = ReliabilityPage("reliability", "Tried")
JUNIT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.integration.test_crashes" name="test_a[1]" time="2.5"/>
<testcase classname="tests.integration.test_crashes" name="test_b" time="1"><failure message="no"/></testcase>
<testcase classname="tests.unit.test_ray" name="test_c" time="0"><skipped message="no ray"/></testcase>
</testsuite></testsuites>"""


def sampled(number: int, **figures: float) -> Sample:
    values: dict[str, float] = {}
    values |= dict.fromkeys(Sample.model_fields, 0) | {"round": number, "seconds": 2.0 * number, **figures}
    return Sample.model_validate(values)


def a_study(growth_bytes: int = 1000) -> tuple[Sample, ...]:
    return tuple(sampled(n, database_bytes=50_000 + growth_bytes * n, resident_mb=100.0) for n in range(51))


def an_endurance() -> LoadBenchmark:
    many = {"sites": 3, "parameters": 100, "rounds": 500, "released": 50, "samples": a_study(), "rows": {"nonces": 7}}
    return a_load(command="moiety bench load --rounds 500", **many)


def test_slopes_are_those_of_straight_lines() -> None:
    found = {one.what: one for one in slopes(a_study())}
    assert found["both databases"].per_round == pytest.approx(1.0)
    assert (found["both databases"].first, found["both databases"].last) == (pytest.approx(62.5), pytest.approx(97.5))
    assert found["a server's memory"].per_round == pytest.approx(0.0, abs=1e-9)
    assert found["a round's time"].last == pytest.approx(2.0)
    assert "both databases: 62.5 kB at first, 97.5 in the end, +1 kB a round" in load_text(an_endurance())


def left(folder: Path) -> None:
    """All that soak runs can leave, with a crash, an error and a test that failed."""
    decoders = (
        DecoderCount(name="message study", inputs=10, taken=1, refused=8, crashes=1, slowest_s=0.01),
        DecoderCount(name="message roster", inputs=5, taken=0, refused=5, crashes=0, slowest_s=0.002),
        DecoderCount(name="padding", inputs=7, taken=7, refused=0, crashes=0, slowest_s=0.001),
    )
    crash = Crash(decoder="message study", what="KeyError: 'name'", data="7b7d")
    totals = {"inputs": 22, "taken": 8, "refused": 13, "crashes": 1, "cpu_s": 3.0, "grown_mb": 1.0}
    inputs = FuzzedInputs(seed=2, decoders=decoders, found=(crash,), **totals)
    requests = FuzzedRequests(
        seed=2,
        requests=12_345,
        by_kind={"stranger, whole request": 12_345},
        by_answer={"404": 12_344, "500": 1},
        errors=("stranger: 500: GET /",),
        honest_rounds=9,
        seconds=60.0,
        grown_mb=5.0,
        data_mb=8.0,
    )
    folder.mkdir(parents=True)
    for name, one in ((INPUTS, inputs), (REQUESTS, requests), (ENDURANCE, an_endurance())):
        (folder / name).write_text(one.model_dump_json())
    (folder / "load_20.json").write_text(a_load().model_dump_json())
    faults = {"runs": 100, "failed": 2, "steps": 9000, "faults_injected": {"lost": 40, "kill": 2}, "ends": {}}
    (folder / FAULTS).write_text(json.dumps(faults))
    (folder / TESTS).write_text(JUNIT)


def test_what_failed_is_printed_as_what_passed_is(tmp_path: Path) -> None:
    left(tmp_path / "runs" / "soak")
    text = PAGE.write_page(tmp_path / "runs", tmp_path / "out", None).read_text(encoding="utf-8")
    assert "ot run yet" not in text
    assert "6 runs of 6 are on this page" in text
    assert "**Crashes: 1.**" in text
    assert "- message study: KeyError: 'name'" in text
    assert "| messages | 15 | 1 | 13 | 1 |" in text
    assert "lines of internal errors: 1.**" in text
    assert "- stranger: 500: GET /" in text
    assert "Studies after which something did not hold: 2.**" in text
    assert "| lost | 40 |" in text
    assert "both servers' CPU, a site and round: 61.5 ms" in text
    assert "1 passed, 1 failed, 1 skipped" in text
    assert "- **failed:** tests.integration.test_crashes: test_b" in text
    assert "- skipped: tests.unit.test_ray: no ray" in text
    for command in ("make soak ", a_load().command, an_endurance().command):
        assert f"\n{command}" in text
    assert "50 rounds released of 500 asked for" in text
    figures = sorted(path.name for path in (tmp_path / "out").glob("*.svg"))
    assert len(figures) == 8
    assert all(name in text for name in figures)


def test_what_failed_and_ran_again_is_told_twice(tmp_path: Path) -> None:
    left(tmp_path / "runs" / "soak")
    (tmp_path / "runs" / "soak" / AGAIN).write_text(
        """<testsuites><testsuite name="pytest">
        <testcase classname="tests.integration.test_crashes" name="test_b" time="4"/>
        <testcase classname="tests.unit.test_on_disk" name="test_d" time="2"><failure message="no"/></testcase>
        </testsuite></testsuites>"""
    )
    text = PAGE.write_page(tmp_path / "runs", tmp_path / "out", None).read_text(encoding="utf-8")
    assert "- **failed:** tests.integration.test_crashes: test_b" in text
    assert "Those that failed ran once more by themselves: 1 passed, 1 failed, 0 skipped, in 6 s." in text
    assert "- **failed again:** tests.unit.test_on_disk: test_d" in text


def test_a_file_of_another_version_is_named(tmp_path: Path) -> None:
    left(tmp_path / "soak")
    (tmp_path / "soak" / REQUESTS).write_text('{"requests": 1}')
    with pytest.raises(ConfigurationError, match=r"fuzz_requests.json: \d+ fields are not those of this version"):
        read_soak(tmp_path / "soak")
