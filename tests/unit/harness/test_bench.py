"""The benchmark's vectors, meter, page and charts; one tiny round over real processes; what every command takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, get_args, get_type_hints

import numpy as np
import pytest
from typer.testing import CliRunner

import moiety
from harness.bench import meter
from harness.bench.cli import app
from harness.bench.meter import BothServers, RoundBenchmark, ServerCpu, write_result
from harness.bench.report import DRAWN, by_parameters, by_sites, charts_of, page_of, servers_cpu_s
from harness.bench.round import benchmark_round, round_text
from harness.bench.round_parties import COMMANDS
from harness.bench.synthetic import largest_allowed_difference, numerator_of, parameters_for, plain_average, update_of
from host.output_files import writable_folder as made
from protocol.errors import ConfigurationError

ISSUED_KEYS = {
    "seconds",
    "seconds_by_phase",
    "bytes_up_per_parameter",
    "bytes_down_per_parameter",
    "bytes_between_servers_per_contributor",
    "bytes_between_servers_per_parameter",
    "server_peak_rss_mb",
    "agent_peak_rss_mb",
    "cpu_ns_per_parameter_contributor",
    "agent_cpu_ns_per_parameter",
    "plain_fedavg_cpu_ns_per_parameter",
    "upload_gb_per_s",
    "versions",
}


def a_result(parameters: int = 10**6, sites: int = 10, **changes: object) -> RoundBenchmark:
    values: dict[str, object] = {
        "parameters": parameters,
        "sites": sites,
        "command": f"moiety lab bench round --parameters {parameters} --sites {sites}",
        "date": "2030-01-01 00:00 UTC",
        "machine": "a machine",
        "seconds": 3.0,
        "seconds_by_phase": {"sum": 1.0, "output": 2.0},
        "bytes_up_per_parameter": 8.01,
        "bytes_down_per_parameter": 8.02,
        "bytes_between_servers_per_contributor": 880_000.0,
        "bytes_between_servers_per_parameter": 8.0,
        "server_peak_rss_mb": BothServers(a=300.0, b=310.0),
        "server_idle_rss_mb": BothServers(a=200.0, b=210.0),
        "agent_peak_rss_mb": 150.0,
        "agent_idle_rss_mb": 140.0,
        "cpu_ns_per_parameter_contributor": ServerCpu(distances=59.0, sum=3.5, ingest=20.0, output=9.0),
        "agent_cpu_ns_per_parameter": 19.0,
        "plain_fedavg_cpu_ns_per_parameter": 5.5,
        "upload_gb_per_s": 0.6,
        "max_abs_difference_to_plain": 1e-7,
        "versions": {"python": "3.11"},
    }
    return RoundBenchmark(**(values | changes))


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


def test_the_page_holds_every_figure_and_names_what_falls_short(tmp_path: Path) -> None:
    write_result(a_result(), tmp_path / "round_1e6_10.json")
    write_result(a_result(sites=40, server_peak_rss_mb=BothServers(a=340.0, b=370.0)), tmp_path / "round_1e6_40.json")
    write_result(a_result(10**7), tmp_path / "round_1e7_10.json")
    page = page_of(tmp_path)
    lines = page.splitlines()
    assert "| 10,000,000 | 10 | sum, ns | 3.5 | at most 5 | reached |" in lines
    assert "| 10,000,000 | 10 | upload, GB/s | 0.6 | at least 0.4 | reached |" in lines
    assert "| 10,000,000 | 10 | distances, ns | 59 | at most 12 | **falls short** |" in lines
    assert not [line for line in lines if line.startswith("| 1,000,000 | 10 | distances, ns")]
    assert any("40 sites is 60 MB above" in line and "falls short" in line for line in lines)
    assert "- `moiety lab bench round --parameters 1000000 --sites 40`: 2030-01-01 00:00 UTC, a machine" in lines


def test_rounds_of_tiny_models_show_what_a_contributor_costs_by_itself(tmp_path: Path) -> None:
    write_result(a_result(), tmp_path / "round_1e6_10.json")
    cpu = ServerCpu(distances=9000.0, sum=1000.0, ingest=5500.0, output=3100.0)
    tiny = a_result(1000, 100, cpu_ns_per_parameter_contributor=cpu, agent_cpu_ns_per_parameter=6000.0)
    write_result(tiny, tmp_path / "round_1e3_100.json")
    lines = page_of(tmp_path).splitlines()
    assert "| 1,000 | 100 | ingest, both servers | 5.5 | at most 6 | reached |" in lines
    assert "| 1,000 | 100 | output, both servers | 3.1 | at most 3 | **falls short** |" in lines
    assert "| 1,000 | 100 | agent | 6.0 | at most 6 | reached |" in lines
    assert not any("9,000" in line or "9000.0" in line for line in lines)


def test_rounds_with_tags_stand_beside_those_without(tmp_path: Path) -> None:
    write_result(a_result(), tmp_path / "round_1e6_10.json")
    cpu = ServerCpu(distances=59.0, sum=4.25, ingest=20.0, output=9.0, tags=0.5)
    for sites in (10, 20):
        tagged = a_result(sites=sites, tags=True, cpu_ns_per_parameter_contributor=cpu)
        write_result(tagged, tmp_path / f"round_1e6_{sites}_tags.json")
    for name, tags in (("", False), ("_tags", True)):
        write_result(a_result(10**7, tags=tags), tmp_path / f"round_1e7_10{name}.json")
    page = page_of(tmp_path)
    assert page.count("| 10,000,000 | 10 | sum, ns |") == 1, "targets are of rounds without tags"
    assert "| 1,000,000 | 10 | with | 8.010 | 8.020 | 8.000 | 4.250 | 0.500 | 19.000 | 3.000 |" in page
    assert "| 1,000,000 | 10 | without | 8.010 | 8.020 | 8.000 | 3.500 | 0.000 | 19.000 | 3.000 |" in page
    assert "| 1,000,000 | 20 | without | - | - | - | - | - | - | - |" in page


def test_a_folder_without_results_or_with_strange_ones_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no round_"):
        page_of(tmp_path)
    (tmp_path / "round_x.json").write_text('{"parameters": 1}')
    with pytest.raises(ConfigurationError, match=r"round_x\.json"):
        page_of(tmp_path)


@pytest.mark.slow
def test_a_whole_round_over_processes_gives_every_figure(tmp_path: Path) -> None:
    result = benchmark_round(5000, 3, tmp_path)
    assert set(RoundBenchmark.model_fields) >= ISSUED_KEYS
    assert result.bytes_between_servers_per_parameter >= 8.0
    assert result.bytes_up_per_parameter > 8.0
    cpu = result.cpu_ns_per_parameter_contributor
    assert min(cpu.distances, cpu.sum, cpu.ingest, cpu.output, result.agent_cpu_ns_per_parameter) > 0
    assert result.seconds == sum(result.seconds_by_phase.values())
    assert "5,000 parameters, 3 contributors" in round_text(result)
    assert list(tmp_path.iterdir()) == []  # nothing stays behind


@pytest.mark.slow
def test_a_whole_round_with_tags_over_processes(tmp_path: Path) -> None:
    result = benchmark_round(5000, 3, tmp_path, tags=True)
    assert result.cpu_ns_per_parameter_contributor.tags > 0
    assert result.seconds_by_phase["tags"] > 0
    assert ", tags " in round_text(result)


def test_commands_to_the_contributors_are_told_apart_by_their_kind() -> None:
    with pytest.raises(ValueError, match="kind"):
        COMMANDS.validate_json('{"kind": "sleep"}')


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
