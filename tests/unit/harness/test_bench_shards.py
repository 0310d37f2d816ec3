"""``moiety bench shards``: a small run without a cluster, the section of the page, and numbers that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.bench.cli import app
from harness.bench.report import page_of
from harness.bench.results import write_result
from harness.bench.shards import ShardsBenchmark, benchmark_shards, shards_section
from tests.unit.harness.test_bench import a_result as a_round

D = 2 * 2**15 + 5


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ShardsBenchmark:
    folder = tmp_path_factory.mktemp("shares")
    found = benchmark_shards(D, 3, [], 2**15, folder)
    assert not list(folder.iterdir())
    return found


def test_the_server_alone_reads_its_shares_once_a_pass(result: ShardsBenchmark) -> None:
    (run,) = result.runs
    assert (run.workers, run.sketch.ranges, run.sum.ranges) == (0, 3, 3)
    assert 2 * 8 * D < run.sketch.bytes_read == run.sum.bytes_read < 2.1 * 8 * D
    assert 2 * 8 * D < result.stored_bytes < 2.1 * 8 * D
    assert run.sketch.workers_cpu_seconds == run.sketch.busiest_worker_cpu_seconds > 0


def test_the_page_has_a_section_that_says_what_is_no_measurement(result: ShardsBenchmark, tmp_path: Path) -> None:
    text = shards_section(result)
    assert "## Passes by ranges: 65,541 parameters, 3 shares" in text
    assert text.count("| 0 | sketch |") == text.count("| 0 | sum |") == 1
    assert "Extrapolated, not measured: 655,410 parameters" in text
    write_result(result, tmp_path / "shards_small.json")
    write_result(a_round(), tmp_path / "round_some.json")
    assert text in page_of(tmp_path)
    assert f"`{result.command}`" in page_of(tmp_path)


def test_numbers_of_workers_that_are_none_are_refused() -> None:
    ran = CliRunner().invoke(app, ["shards", "--workers", "0,many"])
    assert ran.exit_code == 2
