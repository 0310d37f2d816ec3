"""The page on the leak says what its lines say, and runs what is missing once."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.papers.attacked import leak_runs
from harness.papers.attacked.leak import LeakPage
from harness.papers.making import Making

PAGE = LeakPage("leak", "What falsified products tell a server")


def test_without_runs_it_says_so(tmp_path: Path) -> None:
    text = PAGE.write_page(tmp_path, tmp_path / "out", None).read_text(encoding="utf-8")
    assert text.count("not run") == 3 * 2 + 3 * 3 + 3 * 3
    assert "| at most, with the clause | 5.8 | 8.9 | 12.3 |" in text


def test_what_is_missing_is_run_once_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [one for one in leak_runs.asked() if one.question.value == "norm" and one.rounds == 10]
    monkeypatch.setattr(leak_runs, "SEEDS", (0, 1))
    monkeypatch.setattr(leak_runs, "asked", lambda: everything)
    told: list[str] = []
    making = Making(tmp_path, None, 1, "cpu", told.append)
    for _ in range(2):
        PAGE.run_missing(making)
        assert len(told) == len(leak_runs.recorded(tmp_path)) == 2 * 2
    text = PAGE.write_page(tmp_path, tmp_path / "out", None).read_text(encoding="utf-8")
    assert "| is its norm above a number (FedAvg with a norm bound) | 5.8 ± 0.0 | not run | not run |" in text
    assert "4 studies" in text
