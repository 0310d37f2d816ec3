"""How a round grows with parameters and with sites: what is compared, and that the page shows charts that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.bench.cli import app
from harness.bench.growth import DRAWN, Drawn, by_parameters, by_sites, servers_cpu_s
from harness.bench.report import charts_of, page_of
from harness.bench.results import BothServers, ServerCpu, write_result
from tests.unit.harness.test_bench import a_result


def test_rounds_are_compared_that_differ_in_one_thing() -> None:
    usual, larger, more = a_result(10**6, 10), a_result(10**7, 10), a_result(10**6, 40)
    assert by_parameters([usual, larger, more]) == [usual, larger]
    assert by_sites([usual, larger, more]) == [usual, more]
    assert by_parameters([usual, more]) == []
    assert by_sites([usual, larger]) == []


def test_a_rounds_cpu_is_of_all_vectors() -> None:
    one = a_result(10**6, 9, cpu_ns_per_parameter_contributor=ServerCpu(distances=50, sum=10, ingest=30, output=10))
    assert servers_cpu_s(one) == pytest.approx(100e-9 * 10**6 * 10)
    assert Drawn.MEMORY.figures["server B"](a_result(server_peak_rss_mb=BothServers(a=1.0, b=2.0))) == 2.0


def test_the_report_draws_them_beside_the_figures(tmp_path: Path) -> None:
    results, page = tmp_path / "benchmarks", tmp_path / "benchmarks.md"
    write_result(a_result(10**6, 10), results / "round_1e6_10.json")
    write_result(a_result(10**6, 10, tags=True), results / "round_1e6_10_tags.json")
    assert "## Growth" not in page_of(results)
    assert charts_of(results) == {}
    write_result(a_result(10**6, 40), results / "round_1e6_40.json")
    write_result(a_result(10**7, 10), results / "round_1e7_10.json")
    done = CliRunner().invoke(app, ["report", "--results", str(results), "--out", str(page)])
    assert done.exit_code == 0, done.output
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text())
    assert shown == [f"benchmarks/{name}" for name in DRAWN]
    for name in shown:
        chart = (tmp_path / name).read_text()
        assert chart.startswith("<svg")
        assert "CPU of both servers" in chart
    assert charts_of(results) == {name: (results / name).read_text() for name in DRAWN}, "the same bytes again"
