"""``moiety simulate`` with a case, from the command line to the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import moiety
from harness.simulate import command
from harness.simulate.summary import CaseSummary
from tests.kit.cases import case_text, variant


def text(data: str = "breast_cancer", inputs: int = 30, split: str = "") -> str:
    case = f"seeds = [0, 1]\n{split}"
    return case_text(variant("local"), variant("fedavg"), rounds=2, data=data, case=case, inputs=inputs, training="")


TITANIC = text("titanic", 9, 'split = "age_some"')


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    path = tmp_path / "case.toml"
    path.write_text(text())
    return path


def simulate(*arguments: object) -> None:
    with pytest.raises(SystemExit) as ended:
        moiety.main(["simulate", *map(str, arguments)])
    assert not ended.value.code


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as ended:
        moiety.main(["simulate", *map(str, arguments)])
    assert ended.value.code
    return " ".join(capsys.readouterr().err.split())


def test_a_case_ends_in_a_table_and_files(case_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    simulate(case_file, "--out", out)
    shown = capsys.readouterr().out
    assert "try: 4 of 4 runs" in shown
    assert "test accuracy, mean ± SE" in shown
    summary = CaseSummary.model_validate_json((out / "summary.json").read_text())
    assert [(row.variant, row.runs) for row in summary.rows] == [("local", 2), ("fedavg", 2)]
    assert (out / "accuracy.svg").read_text().startswith("<svg")
    lines = (out / "results.jsonl").read_bytes()
    simulate(case_file, "--out", out, "--seeds", "1", "--only", "fedavg", "--json")
    again = CaseSummary.model_validate_json(capsys.readouterr().out)
    assert [(row.variant, row.runs) for row in again.rows] == [("fedavg", 1)]
    # nothing was done again
    assert (out / "results.jsonl").read_bytes() == lines


def test_secure_runs_of_a_case_are_protected(case_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    simulate(case_file, "--out", out, "--seeds", "0", "--only", "fedavg", "--protection", "secure")
    (line,) = (out / "results.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert (found["protection"], found["kind"]) == ("secure", ["released", "released"])


def test_what_is_missing_is_said(
    case_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--only: found 'local,'" in refused(capsys, case_file, "--out", tmp_path / "out", "--only", "local,")
    titanic = tmp_path / "titanic.toml"
    titanic.write_text(TITANIC)
    monkeypatch.delenv("MOIETY_DATA", raising=False)
    assert "--data, or set MOIETY_DATA" in refused(capsys, titanic, "--out", tmp_path / "out")
    said = refused(capsys, titanic, "--out", tmp_path / "out", "--data", tmp_path / "data")
    assert "titanic/titanic3.csv is missing: it belongs to Titanic passengers" in said


def test_download_fetches_the_files_of_the_cases_data_set(
    case_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], Path]] = []
    monkeypatch.setattr(
        command, "fetch_missing", lambda files, folder, tell: asked.append(([file.path for file in files], folder))
    )
    titanic = tmp_path / "titanic.toml"
    titanic.write_text(TITANIC)
    refused(capsys, titanic, "--out", tmp_path / "out", "--data", tmp_path, "--download")
    assert asked == [(["titanic/titanic3.csv"], tmp_path)]
    simulate(case_file, "--out", tmp_path / "out", "--seeds", "0", "--download")
    assert len(asked) == 1
