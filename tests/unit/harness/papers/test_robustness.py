"""The robustness page says what the attacked runs say, and what has not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.adversaries.attacked_study import AS_IT_IS
from harness.adversaries.gaining.lies import Lie
from harness.adversaries.gaining.lying_line import LyingLine
from harness.adversaries.locating.locating_line import Located, LocatingLine, Points
from harness.papers.making import Making
from harness.papers.robustness import runs as robustness_runs
from harness.papers.robustness.page import RobustnessPage
from harness.papers.robustness.runs import DISTANCES, LIES, lying_lines
from harness.simulate.store import append_line
from harness.simulate.study_files import STUDIES, simulated_study

PAGE = RobustnessPage("robustness", "What poisoners, liars and distances can do", STUDIES)


def lying(variant: str, lie: Lie | None, seed: int, **changes: object) -> LyingLine:
    made = LyingLine(
        study="lies-heart",
        variant=variant,
        setting="as_it_is",
        requester="cleveland",
        seed=seed,
        sites=4,
        liars=("va",),
        lie=lie,
        rule="mallows",
        end="completed",
        released=30,
        clip_norm=1.0,
        weight=0.25,
        moved=1.0,
        path=2.0,
        log_loss=0.5,
        honest_log_loss=0.4,
        seconds=1.0,
        versions={"python": "3.11"},
    )
    return made.model_copy(update=changes)


def located(seed: int) -> LocatingLine:
    one = Located(
        colluders=1,
        points=Points.ZEROS,
        rounds=30,
        single=0.5,
        summed=0.4,
        together=0.3,
        true=0.2,
        offset=0.9,
        expected=0.98,
    )
    return LocatingLine(
        study="lies-heart",
        variant="fedavg",
        setting="heart-full",
        requester="cleveland",
        seed=seed,
        sites=4,
        parameters=28,
        located=(one,),
        seconds=1.0,
        versions={"python": "3.11"},
    )


def write(path: Path, *lines: LyingLine | LocatingLine) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for line in lines:
        append_line(path, line)


def test_without_runs_it_says_so(tmp_path: Path) -> None:
    text = PAGE.write_page(tmp_path / "runs", tmp_path / "out", None).read_text()
    assert text.count("**Not run yet:** 0 runs.") == 5  # two studies with poisoners, three with liars
    assert "heart disease, full batches, 30 rounds: not run yet" in text


def test_shares_ways_and_costs_are_those_of_the_lines(tmp_path: Path) -> None:
    lines = [lying("mallows", None, seed, moved=0.0, log_loss=0.4) for seed in (0, 1)]
    lines += [lying("mallows", Lie.COPY, 0), lying("mallows", Lie.COPY, 1, weight=0.75, log_loss=0.8, moved=3.0)]
    finished = [lying("mallows", lie, 0, setting="finished", log_loss=0.41) for lie in (None, Lie.ORACLE)]
    write(tmp_path / LIES, *lines, *finished, lying("local", None, 0, log_loss=0.45))
    write(tmp_path / DISTANCES, located(0), located(1))
    text = PAGE.write_page(tmp_path, tmp_path / "out", None).read_text()
    rows = [line for line in text.splitlines() if line.startswith("| Mallows, plug-in |")]
    assert [row.split("|")[2].strip() for row in rows][:2] == ["0.25", "-"]
    assert "0.50 " in rows[0]
    assert "1.00 " in rows[1]
    assert "+0.25 ± 0.15" in rows[2]
    assert "training alone .450" in text
    assert "| Mallows, plug-in | .410 | - | .410 |" in text
    assert "| 28 | 1 (zeros) | 30 | 0.500 | 0.400 | 0.300 | 0.200 | 0.900 | 0.980 |" in text


def test_what_is_missing_is_run_and_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One short study of each kind, and a line of the first that was there before."""
    lying_one = robustness_runs.Lying("breast_cancer", "", 1, (Lie.COPY,))
    locating = robustness_runs.Locating("here", "", "breast_cancer", AS_IT_IS, (1,))
    monkeypatch.setattr(robustness_runs, "SEEDS", (0,))
    monkeypatch.setattr(robustness_runs, "RULES", ("fedavg",))
    monkeypatch.setattr(robustness_runs, "FINISHED_RULES", ("fedavg",))
    monkeypatch.setattr("harness.papers.robustness.page.LYING", (lying_one,))
    monkeypatch.setattr("harness.papers.robustness.page.LOCATING", (locating,))
    monkeypatch.setattr("harness.papers.robustness.poisoning_runs.run_missing", lambda *given: None)
    monkeypatch.setattr(robustness_runs, "LYING", (lying_one,))
    monkeypatch.setattr(robustness_runs, "LOCATING", (locating,))
    for module in ("harness.adversaries.gaining.lying_run", "harness.adversaries.locating.locating_run"):
        monkeypatch.setattr(
            f"{module}.simulated_study", lambda *given: simulated_study(*given).model_copy(update={"rounds": 1})
        )
    told: list[str] = []
    making = Making(tmp_path, None, 1, "cpu", told.append)
    PAGE.run_missing(making)
    lies = [(line.setting, line.lie) for line in lying_lines(tmp_path)]
    assert lies[:3] == [("as_it_is", None), ("as_it_is", None), ("as_it_is", Lie.COPY)]
    assert lies[3:] == [("finished", None), ("finished", Lie.REPLAY), ("finished", Lie.ORACLE)]
    assert len(told) == 4
    PAGE.run_missing(making)
    assert len(told) == 4
