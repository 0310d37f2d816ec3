"""``moiety demo`` as a person types it, shortened: real processes, report and summary.

The command runs in the test's process, whose processes to fork from have their imports already.
Without and with ``--protection ckks`` in one module: the demo's ports are always the same.
"""

from __future__ import annotations

import json
import math
import os
import signal
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.demo.run import DemoOptions, _rules, data_sets
from protocol.messages.control import RuleName, StudyProtection
from tests.integration.agents import moiety

RULES = {"weight_erosion", "fedavg", "local"}
KEYS = {
    "rule_accuracy",
    "alpha",
    "distance",
    "max_abs_difference_to_plain",
    "max_relative_distance_error",
    "bytes_up_per_parameter",
    "bytes_down_per_parameter",
    "bytes_between_servers_per_contributor_round",
    "seconds_per_round",
    "correlation_source",
    "process_ids",
    "tls_version",
    "seeds",
    "versions",
}
ROUNDS = 2
CLOSE = 1e-4
"""Two rounds' secure and plain models of the small study differ by some 1e-6; other tests hold the derived bound."""

pytestmark = pytest.mark.slow


def typed(*words: str) -> str:
    printed, before = StringIO(), signal.getsignal(signal.SIGTERM)
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            code = moiety("demo", "--quick", "--rounds", str(ROUNDS), *words)
    finally:
        signal.signal(signal.SIGTERM, before)  # the command sets its own
    assert code == 0, printed.getvalue()[-4000:]
    return printed.getvalue()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo")
    return out, typed("--out", str(out))


@pytest.fixture(scope="module")
def studies(demo: tuple[Path, str]) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((demo[0] / "summary.json").read_text())["studies"]
    return summary


def test_both_studies_have_every_figure(studies: dict[str, Any]) -> None:
    assert set(studies) == {"breast_cancer", "digits"}
    for study in studies.values():
        assert set(study) >= KEYS
        assert set(study["rule_accuracy"]) == RULES
        for accuracy in study["rule_accuracy"].values():
            assert 0 <= accuracy["mean"] <= 1
            assert accuracy["standard_error"] >= 0
            assert len(accuracy["values"]) == len(study["seeds"]) == 2
        assert len(study["alpha"]) == len(study["distance"]) == 4
        assert {len(values) for values in study["alpha"].values()} == {ROUNDS}
        assert all(value > 0 for values in study["distance"].values() for value in values)


def test_seven_real_processes_over_tls_with_ot(studies: dict[str, Any]) -> None:
    for study in studies.values():
        pids = study["process_ids"]
        assert len(set(pids.values())) == 7
        assert os.getpid() not in pids.values()
        assert {"operator-a", "operator-b"} <= set(pids)
        assert study["tls_version"] == "TLSv1.3"
        assert study["correlation_source"] == "ot"


def test_no_process_is_left_behind(studies: dict[str, Any]) -> None:
    left = {process.pid for process in psutil.Process().children(recursive=True)}
    assert left.isdisjoint(pid for study in studies.values() for pid in study["process_ids"].values())


def test_secure_and_plain_agree(studies: dict[str, Any]) -> None:
    small, large = studies["breast_cancer"], studies["digits"]
    assert small["exact_distances"]
    assert not large["exact_distances"]
    assert large["parameters"] > 10_000
    for rule in RULES:
        result = small["rules"][rule]
        assert result["weights_equal_plain"]
        assert result["final_models_identical_at_all_sites"]
        assert result["max_abs_difference_to_plain"] < CLOSE
    assert large["rules"]["fedavg"]["weights_equal_plain"]
    # 2 rounds of 4 sketched distances, each with standard deviation 1/sqrt(2k) = 1.6 %; six of them: one in 6e7 runs.
    # The second round's plain twin has moved by less than that: weights differ by at most one grid point.
    assert large["max_relative_distance_error"] < 6 / math.sqrt(2 * 2048)


def test_traffic_is_what_the_protocol_says(studies: dict[str, Any]) -> None:
    large = studies["digits"]
    # 8 bytes per parameter to one server and 32 bytes to the other, plus seals: a header, 1.1 kB of ML-KEM each way,
    # and 16 bytes per chunk of 2^18, and each of the two in an envelope with another ML-KEM; together below 9 kB,
    # on 10,810 parameters.
    for direction in ("up", "down"):
        assert 8 <= large[f"body_bytes_{direction}_per_parameter"] <= 8 + 9000 / large["parameters"]
        assert large[f"bytes_{direction}_per_parameter"] > large[f"body_bytes_{direction}_per_parameter"]
    for study in studies.values():
        assert 0 < study["bytes_between_servers_per_contributor_round"] < 3e6 + 8 * study["parameters"]


def test_what_is_printed(demo: tuple[Path, str], studies: dict[str, Any]) -> None:
    printed = demo[1]
    assert "chosen before any model was trained" in printed
    assert printed.index("screening-centre") < printed.index("round 1/")
    for title in ("breast cancer, five hospitals", "digits, 5 sites"):
        for rule in ("Weight Erosion", "FedAvg"):
            assert f"{title}, {rule}: round {ROUNDS}/{ROUNDS} released" in printed
        assert f"{title}, Local: round {ROUNDS}/{ROUNDS} alone" in printed
    for study in studies.values():
        for accuracy in study["rule_accuracy"].values():
            assert f"{accuracy['mean']:.4f}" in printed


def test_the_report_needs_nothing_else(demo: tuple[Path, str], studies: dict[str, Any]) -> None:
    page = (demo[0] / "report.html").read_text()
    assert page.count("<svg") == 10
    assert "<script" not in page
    assert 'src="' not in page
    assert "What was revealed to whom" in page
    for study in studies.values():
        assert study["title"] in page
        for name, pid in study["process_ids"].items():
            assert f"<td>{name}</td><td class=n>{pid}</td>" in page


def test_ckks_compares_wfedavg_where_every_class_has_an_example(tmp_path: Path) -> None:
    """No site of the digits has an example of 0, 1 or 9, so WFedAvg has no weights there."""
    found = [_rules(one.load(0), StudyProtection.CKKS) for one in data_sets(DemoOptions(tmp_path))]
    assert found == [(RuleName.WFEDAVG, RuleName.FEDAVG, RuleName.LOCAL), (RuleName.FEDAVG, RuleName.LOCAL)]


@pytest.mark.soak
def test_the_demo_under_ckks(tmp_path: Path) -> None:
    """The report's words are in tests/unit/harness/test_demo.py, such processes and models in test_ckks_study.py."""
    pytest.importorskip("tenseal")
    typed("--protection", "ckks", "--out", str(tmp_path))
    studies = json.loads((tmp_path / "summary.json").read_text())["studies"]
    rules = {"breast_cancer": {"wfedavg", "fedavg", "local"}, "digits": {"fedavg", "local"}}
    assert {name: set(study["rules"]) for name, study in studies.items()} == rules
    for study in studies.values():
        for name, rule in study["rules"].items():
            assert rule["final_models_identical_at_all_sites"]
            assert rule["weights_equal_plain"]
            assert study is studies["digits"] or rule["max_abs_difference_to_plain"] < CLOSE
            assert rule["released_rounds"] == (0 if name == "local" else 2)
    # 10.06 bytes a value in whole ciphertexts: 11 of them for 10,811 values, with their seals' 16 bytes per chunk
    assert 10 < studies["digits"]["body_bytes_up_per_parameter"] < 11
    report = (tmp_path / "report.html").read_text()
    assert "Server A held ciphertexts, no server a key." in report
