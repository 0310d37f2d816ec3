"""The hand-written loop takes the simulation's steps: both end with the same model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import moiety
from harness.bench.simulated import compare
from harness.bench.simulated.by_hand import train_by_hand


def test_both_take_the_same_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "simulate.json"
    with pytest.raises(SystemExit) as ended:
        moiety.main(["bench", "simulate", "--rounds", "3", "--rows", "40", "--repeats", "1", "--json", str(file)])
    assert not ended.value.code
    found = json.loads(file.read_text())
    assert found["largest_difference"] < 1e-6
    assert found["ratio"] == pytest.approx(found["simulate_cpu_s"] / found["by_hand_cpu_s"])
    assert "ratio" in capsys.readouterr().out


def test_another_loop_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lazy(study, sites, shared):
        return train_by_hand(study.model_copy(update={"rounds": 1}), sites, shared)

    monkeypatch.setattr(compare, "train_by_hand", lazy)
    assert compare.benchmark_simulation(4, 3, 40, 16, 1).largest_difference > 1e-3
