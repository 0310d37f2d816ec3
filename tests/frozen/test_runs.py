"""The comparison of two folders of runs: every difference by its run and place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.frozen.runs import NOISY, main


def folder(place: Path, **runs: Any) -> str:
    place.mkdir()
    for name, found in runs.items():
        (place / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
    return str(place)


def compared(before: str, after: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = main(["--compare", before, after])
    return code, capsys.readouterr().out.splitlines()


def test_equal_runs_have_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {"one": {"model": [0.5, 0.25]}, "two": {"end": "completed"}}
    before, after = folder(tmp_path / "before", **runs), folder(tmp_path / "after", **runs)
    assert compared(before, after, capsys) == (0, ["0 differences"])


def test_the_last_digit_and_a_missing_run_are_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder(tmp_path / "before", one={"model": [0.5]}, two={})
    after = folder(tmp_path / "after", one={"model": [0.5000000000000001]})
    code, lines = compared(before, after, capsys)
    assert code == 1
    assert lines == [
        "one: model: [0.5] became [0.5000000000000001]",
        f"two.json is missing in {after}",
        "2 differences",
    ]


def test_only_noise_is_held_to_a_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder(tmp_path / "before", **{NOISY[0]: {"model": [0.5], "rounds": 3}})
    after = folder(tmp_path / "after", **{NOISY[0]: {"model": [0.500001], "rounds": 3}})
    beyond = folder(tmp_path / "beyond", **{NOISY[0]: {"model": [0.501], "rounds": 4}})
    assert compared(before, after, capsys)[0] == 0
    assert compared(before, beyond, capsys)[1] == [
        f"{NOISY[0]}: model[0]: 0.5 became 0.501",
        f"{NOISY[0]}: rounds: 3 became 4",
        "2 differences",
    ]


def test_two_empty_folders_prove_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(folder(tmp_path / "before"), folder(tmp_path / "after"), capsys)[0] == 1
