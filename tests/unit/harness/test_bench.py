"""The benchmark's vectors, meter, page and charts; one tiny round over real processes; what every command takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, TypeVar, get_args, get_type_hints

import numpy as np
import pytest
from typer.testing import CliRunner

import moiety
from harness.bench import meter
from harness.bench.cli import app
from harness.bench.meter import Benchmark, RoundBenchmark, ServerCpu, write_result
from harness.bench.report import DRAWN, by_parameters, by_sites, charts_of, page_of, servers_cpu_s
from harness.bench.round import benchmark_round
from harness.bench.synthetic import largest_allowed_difference, numerator_of, parameters_for, plain_average, update_of
from host.output_files import writable_folder as made
from protocol.errors import ConfigurationError

PUBLISHED: Final = Path(__file__).parents[3] / "docs" / "benchmarks"
M = TypeVar("M", bound=Benchmark)


def published(kind: type[M], name: str, **changes: object) -> M:
    """A result that docs/benchmarks has, with other figures where a test needs them."""
    return kind.model_validate(json.loads((PUBLISHED / f"{name}.json").read_text()) | changes)


def a_result(parameters: int = 10**6, sites: int = 10, **changes: object) -> RoundBenchmark:
    return published(RoundBenchmark, "round_1e6_10", parameters=parameters, sites=sites, **changes)


def test_any_process_makes_the_same_updates_a_little_longer_than_the_clip_norm() -> None:
    one = update_of(3, 10_000)
    assert np.array_equal(one, update_of(3, 10_000))
    assert not np.array_equal(one, update_of(4, 10_000))
    # a mean of D squares of uniform numbers is off by about 0.9 / sqrt(D) relatively; six of that, halved by the root
    assert float(np.linalg.norm(one)) == pytest.approx(1.1, rel=0.03)


@pytest.mark.parametrize(("dimension", "grid"), [(10**5, 32), (10**7, 32), (10**8, 8)])
def test_the_grid_is_the_finest_that_keeps_rounding_noise_small(dimension: int, grid: int) -> None:
    parameters = parameters_for(dimension, 11)
    assert (parameters.weight_grid, parameters.least_contributors) == (grid, 10)
    assert {numerator_of(place, grid) > 0 for place in range(50)} == {True}
    assert numerator_of(0, grid) == grid


def test_the_plain_average_clips_and_weighs() -> None:
    parameters = parameters_for(1000, 4)
    places = [0, 1, 2, 3]
    weights = np.array([numerator_of(p, parameters.weight_grid) for p in places]) / parameters.weight_grid
    vectors = [update_of(p, 1000).astype(np.float64) for p in places]
    clipped = [v * min(1.0, 1.0 / float(np.linalg.norm(v))) for v in vectors]
    expected = np.sum([w * v for w, v in zip(weights, clipped, strict=True)], axis=0) / weights.sum()
    found = plain_average(places, parameters)
    assert np.max(np.abs(found.average - expected)) < largest_allowed_difference(places, parameters)
    assert found.cpu_ns > 0


WORKS: Final = """
import time
print(flush=True)
input()
stop = time.process_time() + 0.05
while time.process_time() < stop:
    pass
print(flush=True)
input()
"""


def test_cpu_time_of_a_process_grows_only_while_it_works() -> None:
    """The CPU time of a process without children: some of this one's may end meanwhile, with what they had."""
    with subprocess.Popen([sys.executable, "-c", WORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        before = meter.cpu_ns(other.pid)
        other.stdin.write(b"\n")
        other.stdin.flush()
        other.stdout.readline()
        assert 50_000_000 <= meter.cpu_ns(other.pid) - before < 500_000_000
        assert meter.peak_mb(other.pid) >= meter.resident_mb(other.pid) > 1
        other.stdin.write(b"\n")
        other.stdin.flush()
    assert "cores" in meter.machine()


def test_the_published_page_is_what_its_files_come_to() -> None:
    """Every table, verdict and section: a figure, a limit or a rounding that changes is seen here."""
    assert page_of(PUBLISHED) == PUBLISHED.with_suffix(".md").read_text(encoding="utf-8")


def test_a_round_with_tags_stands_beside_one_without_where_there_is_one(tmp_path: Path) -> None:
    write_result(a_result(), tmp_path / "round_1e6_10.json")
    write_result(a_result(sites=20, tags=True), tmp_path / "round_1e6_20_tags.json")
    assert "| 1,000,000 | 20 | without | - | - | - | - | - | - | - |" in page_of(tmp_path)


def test_a_memory_that_grows_with_sites_falls_short(tmp_path: Path) -> None:
    few = a_result()
    write_result(few, tmp_path / "round_1e6_10.json")
    for grown_mb, verdict in ((60, "**falls short**"), (50, "reached")):
        peak = {"a": few.server_peak_rss_mb.a, "b": few.server_peak_rss_mb.b + grown_mb}
        write_result(a_result(sites=40, server_peak_rss_mb=peak), tmp_path / "round_1e6_40.json")
        said = f"40 sites is {grown_mb} MB above that at 1,000,000 and 10 (target: at most 50): {verdict}."
        assert said in page_of(tmp_path)


def test_a_folder_without_results_or_with_strange_ones_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no round_"):
        page_of(tmp_path)
    (tmp_path / "round_x.json").write_text('{"parameters": 1}')
    with pytest.raises(ConfigurationError, match=r"round_x\.json"):
        page_of(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("tags", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_whole_round_over_processes_gives_every_figure(tags: bool, tmp_path: Path) -> None:
    result = benchmark_round(5000, 3, tmp_path, tags=tags)
    assert result.bytes_between_servers_per_parameter >= 8.0
    assert result.bytes_up_per_parameter > 8.0
    cpu = result.cpu_ns_per_parameter_contributor
    assert min(cpu.distances, cpu.sum, cpu.ingest, cpu.output, result.agent_cpu_ns_per_parameter) > 0
    assert (cpu.tags > 0) is ("tags" in result.seconds_by_phase) is tags
    assert result.seconds == sum(result.seconds_by_phase.values())
    assert list(tmp_path.iterdir()) == []  # nothing stays behind


def test_a_command_prints_every_figure_by_its_name() -> None:
    shown = a_result(seconds=1234.5, max_abs_difference_to_plain=1e-7).section().splitlines()
    assert shown[0] == "## A round of 1,000,000 parameters, 10 contributors and the requester"
    assert {"- seconds: 1,234", "- max abs difference to plain: 1e-07", "- tags: False"} <= set(shown)
    assert any(line.startswith("- cpu ns per parameter contributor, distances: ") for line in shown)


def test_rounds_are_compared_that_differ_in_one_thing() -> None:
    usual, larger, more = a_result(10**6, 10), a_result(10**7, 10), a_result(10**6, 40)
    assert by_parameters([usual, larger, more]) == [usual, larger]
    assert by_sites([usual, larger, more]) == [usual, more]
    assert by_parameters([usual, more]) == []
    assert by_sites([usual, larger]) == []


def test_a_rounds_cpu_is_of_all_vectors() -> None:
    one = a_result(10**6, 9, cpu_ns_per_parameter_contributor=ServerCpu(distances=50, sum=10, ingest=30, output=10))
    assert servers_cpu_s(one) == pytest.approx(100e-9 * 10**6 * 10)


def test_the_page_draws_them_beside_the_figures(tmp_path: Path) -> None:
    results, page = tmp_path / "benchmarks", tmp_path / "benchmarks.md"
    write_result(a_result(10**6, 10), results / "round_1e6_10.json")
    write_result(a_result(10**6, 10, tags=True), results / "round_1e6_10_tags.json")
    assert "## Growth" not in page_of(results)
    assert charts_of(results) == {}
    write_result(a_result(10**6, 40), results / "round_1e6_40.json")
    write_result(a_result(10**7, 10), results / "round_1e7_10.json")
    done = CliRunner().invoke(moiety.build("lab results"), ["lab", "results", "--out", str(tmp_path / "results")])
    assert done.exit_code == 0, done.output
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text())
    assert shown == [f"benchmarks/{name}" for name in DRAWN]
    for name in shown:
        chart = (tmp_path / name).read_text()
        assert chart.startswith("<svg")
        assert "CPU of both servers" in chart
    assert charts_of(results) == {name: (results / name).read_text() for name in DRAWN}, "the same bytes again"


def test_it_is_made_or_refused(tmp_path: Path) -> None:
    assert made(None) is None
    assert made(tmp_path / "not" / "there") == tmp_path / "not" / "there"
    assert (tmp_path / "not" / "there").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written: something else is there"):
        made(tmp_path / "file")


def test_the_working_folder_is_tried_itself_and_not_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []
    honest = os.open

    def noting(path: str | Path, flags: int, mode: int = 0o777, **how: int | None) -> int:
        if flags & os.O_CREAT:
            tried.append(Path(path).parent)
        return honest(path, flags, mode, **how)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("host.output_files.os.open", noting)
    assert made(Path()) == Path()
    assert tried == [tmp_path]


def test_every_command_with_a_folder_asks_so() -> None:
    asked = {
        command.name: get_args(kind)[1].callback
        for command in app.registered_commands
        if command.callback is not None
        for name, kind in get_type_hints(command.callback, include_extras=True).items()
        if name == "folder"
    }
    assert asked == dict.fromkeys(("round", "ckks", "idle", "load", "shards"), made)


def test_a_person_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["round", "--folder", str(tmp_path / "file")])
    assert "name another place" in str(done.exception)
