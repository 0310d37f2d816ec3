"""``moiety demo --protection ckks`` as a person runs it, shortened: real processes, report and summary."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
pytest.importorskip("tenseal")


def test_the_demo_under_ckks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moiety", "demo", "--protection", "ckks", "--quick", "--rounds", "2"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    studies = json.loads((tmp_path / "summary.json").read_text())["studies"]
    # no site of the digits has an example of 0, 1 or 9, so WFedAvg has no weights there
    rules = {"breast_cancer": {"wfedavg", "fedavg", "local"}, "digits": {"fedavg", "local"}}
    assert {name: set(study["rules"]) for name, study in studies.items()} == rules
    for study in studies.values():
        for name, rule in study["rules"].items():
            assert rule["final_models_identical_at_all_sites"]
            assert rule["weights_equal_plain"]
            assert rule["difference_bound"] is None or rule["max_abs_difference_to_plain"] <= rule["difference_bound"]
            assert rule["released_rounds"] == (0 if name == "local" else 2)
    # 10.06 bytes a value in whole ciphertexts: 11 of them for 10,811 values, with their seals' 16 bytes a chunk
    assert 10 < studies["digits"]["body_bytes_up_per_parameter"] < 11
    report = (tmp_path / "report.html").read_text()
    assert "Server A held ciphertexts, no server a key." in report
