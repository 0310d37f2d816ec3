"""``moiety lab bench ckks``, ``shards``, ``tags`` and ``ring``: one tiny run of each, their files and their words."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from harness.bench import ckks
from harness.bench import ring as lifting
from harness.bench.ckks import errors_of, measure_ours, weighted_update
from harness.bench.cli import app
from harness.bench.processes import ServersOnly
from harness.bench.ring import RingBenchmark, benchmark_ring
from harness.bench.shards import ShardsBenchmark, benchmark_shards
from harness.bench.synthetic import parameters_for, plain_average, update_of
from harness.bench.tags import TARGET_NS, TagsBenchmark
from harness.fork_server import fork_context
from protocol.ckks.ciphertext import CkksParameters
from protocol.errors import ProtocolViolation

ISSUED_KEYS = {
    "bytes_up_per_parameter",
    "bytes_down_per_parameter",
    "ns_per_parameter",
    "peak_rss_mb",
    "max_error",
}


@pytest.mark.slow
def test_one_run_writes_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that play the round of shares are forked here; test_bench.py has one whose processes are new."""
    monkeypatch.setattr("harness.bench.round.ServersOnly", lambda spec, folder, forked: ServersOnly(spec, folder))
    monkeypatch.setattr("harness.bench.round_parties.get_context", lambda kind: fork_context())
    file = tmp_path / "ckks.json"
    done = CliRunner().invoke(
        app, ["ckks", "--parameters", "8159", "--sites", "3", "--out", str(file), "--folder", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found.keys() >= ISSUED_KEYS
    assert found["ns_per_parameter"].keys() >= {"encrypt", "add", "decrypt"}
    assert all(value > 0 for value in found["ns_per_parameter"].values())
    assert 0 < found["max_error"] <= found["norm_error"] < 1e-5
    # 8,159 coordinates and the weight are exactly eight ciphertexts: 10.102 bytes a value, and header, tag and weight
    assert 10.102 < found["bytes_up_per_parameter"] < 10.12
    assert found["shares"]["bytes_up_per_parameter"] > 8
    assert found["shares"]["cpu_ns_per_parameter_contributor"]["tags"] == 0
    assert "tags" not in found["shares"]["seconds_by_phase"]
    assert "- ring degree: 2,048" in done.output


def test_the_exact_average_is_the_other_benchmarks_one() -> None:
    dimension, sites = 500, 4
    total = np.zeros(dimension)
    for place in range(sites):
        one = weighted_update(place, dimension, sites)
        total += one.update.astype(np.float64) * one.scaling.factor * one.scaling.unit * one.scaling.weight
    weights = sum(weighted_update(place, dimension, sites).scaling.weight for place in range(sites))
    assert errors_of((total / weights).astype(np.float32), sites).largest < 2.0**-24
    plain = plain_average([*range(sites)], parameters_for(dimension, sites)).average
    # float32: four products and sums of coordinates below 0.1, a norm of 500 squares, and a division
    assert errors_of(plain, sites).largest < 0.1 * 600 * 2.0**-24


def test_an_average_that_is_off_fails_the_benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ckks, "LARGEST_ERROR", 0.0)
    with pytest.raises(ProtocolViolation, match="the opened average is off"):
        measure_ours(CkksParameters(), 100, 3, tmp_path)


def test_the_error_found_is_the_noise_expected(tmp_path: Path) -> None:
    """Root mean square over 4,000 coordinates: within 8 / sqrt(2 * 4000) = 9 % of the deviation, and float32's."""
    found = measure_ours(CkksParameters(), 4000, 5, tmp_path)
    weights = sum(weighted_update(place, 4000, 5).scaling.weight for place in range(5))
    expected = CkksParameters().value_deviation * math.sqrt(5) / weights
    assert found.norm_error / math.sqrt(4000) == pytest.approx(expected, rel=0.1)


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


def test_numbers_of_workers_that_are_none_are_refused() -> None:
    ran = CliRunner().invoke(app, ["shards", "--workers", "0,many"])
    assert ran.exit_code == 2


def test_a_tiny_run_says_what_tags_add(tmp_path: Path) -> None:
    file = tmp_path / "tags.json"
    said = CliRunner().invoke(app, ["variant", "tags", "--parameters", "3000", "--repeats", "3", "--out", str(file)])
    assert said.exit_code == 0, said.output
    found = TagsBenchmark.model_validate_json(file.read_text())
    assert (found.parameters, found.repeats, found.target) == (3000, 3, TARGET_NS)
    assert found.command == "moiety lab bench variant tags --parameters 3000 --repeats 3"
    assert json.loads(file.read_text())["added"].keys() == {"median", "low", "high"}
    assert "- added: " in said.output


SIZE = 4096


def test_lifting_errs_as_often_as_the_entries_sizes_say_and_never_more_than_the_bound() -> None:
    parameters, rng = parameters_for(SIZE, 11), np.random.default_rng(7)
    entries = lifting.sketched(
        lifting.encoded(update_of(1, SIZE), parameters, bytes(32)), hashlib.sha256(b"y").digest(), parameters
    )
    erred, expected = lifting.lift_errors(entries, 30, 1500, rng)
    assert expected > 100
    assert abs(erred - expected) < 5 * np.sqrt(expected)
    assert expected / 1500 <= 1.2 * lifting.most_often(30, parameters)
    assert 2**-21 < lifting.most_often(48, parameters) < 2**-20
    assert lifting.lift_errors(entries, 60, 20, rng)[0] == 0


def test_a_vector_that_is_not_sketched_errs_less() -> None:
    assert lifting.most_often(48, parameters_for(1000, 11)) < lifting.most_often(48, parameters_for(SIZE, 11)) / 2


def test_every_stage_is_timed_in_both_rings_over_whole_pieces() -> None:
    found = benchmark_ring(70_000, 1)
    assert isinstance(found, RingBenchmark)
    assert found.parameters == 65_536
    assert len(found.stages) == 8
    assert min(one.ring_48.median for one in found.stages) > 0
    assert "| agent: open a sum |" in found.section()
