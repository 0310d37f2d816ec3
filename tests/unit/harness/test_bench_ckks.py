"""``moiety bench ckks``: one tiny run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from harness.bench import ckks
from harness.bench.ckks import CkksBenchmark, CkksFigures, CkksTimes, errors_of, measure_ours, weighted_update
from harness.bench.cli import app
from harness.bench.report import page_of
from harness.bench.results import write_result
from harness.bench.synthetic import parameters_for, plain_average
from protocol.ckks.parameters import CkksParameters
from protocol.errors import ProtocolViolation
from tests.unit.harness.test_bench import a_result as a_round

ISSUED_KEYS = {
    "bytes_up_per_parameter",
    "bytes_down_per_parameter",
    "ns_per_parameter",
    "peak_rss_mb",
    "max_error",
}


@pytest.mark.slow
def test_one_run_writes_what_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "ckks.json"
    done = CliRunner().invoke(
        app, ["ckks", "--parameters", "8159", "--sites", "3", "--json", str(file), "--folder", str(tmp_path)]
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
    assert "2048 / [40]" in done.output


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


def a_result() -> CkksBenchmark:
    times = CkksTimes(encrypt=400.0, check=120.0, add=130.0, decrypt=150.0)
    ours = CkksFigures(
        scheme="Moiety's chunks",
        ring_degree=2048,
        modulus_bits=(40,),
        scale_bits=36,
        bytes_up_per_parameter=10.07,
        bytes_down_per_parameter=20.02,
        ns_per_parameter=times,
        peak_rss_mb=200.0,
        worker_rss_mb=52.0,
        max_error=2.4e-9,
        norm_error=4.8e-7,
    )
    return CkksBenchmark(
        **dict(ours),
        parameters=10**6,
        sites=10,
        command="moiety bench ckks --parameters 1000000 --sites 10",
        date="2030-01-01 00:00 UTC",
        machine="a machine",
        shares=a_round(),
        versions={"tenseal": "0.3.18"},
    )


def test_the_page_shows_ckks_next_to_shares(tmp_path: Path) -> None:
    write_result(a_round(), tmp_path / "round_1e6_10.json")
    assert "Under CKKS" not in page_of(tmp_path)
    write_result(a_result(), tmp_path / "ckks_1e6_10.json")
    page = page_of(tmp_path)
    assert "## Under CKKS: 1,000,000 parameters, 10 contributors" in page
    assert "2048 / [40], scale 2^36: bytes per parameter up 10.07, down 20.02" in page
    assert "- `moiety bench ckks --parameters 1000000 --sites 10`: 2030-01-01" in page
