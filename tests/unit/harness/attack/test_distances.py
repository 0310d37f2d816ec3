"""Updates located by distances: the formula over random directions, several rounds, and a study's true updates."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import moiety
from harness.attack.attacked_study import AttackedStudy, relative_error
from harness.attack.distances import LocatingLine, Points, Round, expected_error, located, located_line, located_over
from harness.simulate.case import read_case
from harness.simulate.store import read_lines
from harness.simulate.study_files import STUDIES
from protocol.errors import ConfigurationError

CASE = read_case(STUDIES / "breast_cancer.toml")
D = 12


def attacked(variant: str, rounds: int) -> AttackedStudy:
    return AttackedStudy(CASE, variant, 0, "city-hospital", rounds=rounds)


def one_round(random: np.random.Generator, colluders: int, update: np.ndarray | None = None) -> Round:
    origin = random.normal(size=D)
    points = origin + random.normal(size=(colluders, D))
    return Round(origin, points, random.normal(size=D) if update is None else update)


@pytest.mark.parametrize("colluders", [0, 1, 3, 11, 12, 15])
def test_the_error_over_random_directions_is_the_formula(colluders: int) -> None:
    random = np.random.default_rng(colluders)
    squares = []
    for _ in range(400):
        one = one_round(random, colluders)
        squares.append(relative_error(located(one) - one.origin, one.offset) ** 2)
    assert math.sqrt(np.mean(squares)) == pytest.approx(expected_error(D, colluders), abs=0.02)


def test_repeated_points_say_nothing_twice() -> None:
    one = one_round(np.random.default_rng(1), 2)
    twice = Round(one.origin, np.vstack([one.points, one.points[:1]]), one.update)
    np.testing.assert_allclose(located(twice), located(one), atol=1e-9)


def test_what_does_not_move_is_known_after_enough_rounds_and_what_moves_afresh_is_not() -> None:
    random = np.random.default_rng(2)
    update, ones = random.normal(size=D), np.ones((D, D))
    origin = random.normal(size=D)
    still = [Round(origin, origin + random.normal(size=(1, D)), update) for _ in range(D)]
    assert relative_error(located_over(still, ones, 0.0)[0], update) < 1e-6
    half = located_over(still[: D // 2], ones[: D // 2, : D // 2], 0.0)[0]
    assert 0.1 < relative_error(half - origin, update - origin) < 1
    fresh = [one_round(random, 1) for _ in range(D)]
    together = located_over(fresh, np.eye(D), 0.0)
    np.testing.assert_allclose(together, [located(one) for one in fresh], atol=1e-9)
    nobody = [Round(one.origin, np.zeros((0, D)), one.update) for one in fresh]
    np.testing.assert_array_equal(located_over(nobody, np.eye(D), 0.0), [one.origin for one in fresh])


def test_a_studys_updates_are_located_better_by_more_colluders() -> None:
    line = located_line(attacked("fedavg", 3), (0, 2))
    assert line.parameters == CASE.variant("fedavg").study.model.inputs[0] * 2 + 2
    none, own, drawn, zeros = line.located
    assert (none.colluders, own.points, drawn.points, zeros.points) == (0, Points.HONEST, Points.RANDOM, Points.ZEROS)
    assert none.expected == none.offset == 1
    assert max(own.offset, drawn.offset) < 1
    assert drawn.offset == pytest.approx(drawn.expected, abs=0.02)
    assert zeros.single < 1
    assert none.summed < none.single
    with pytest.raises(ConfigurationError, match="leave no honest contributor"):
        located_line(attacked("fedavg", 1), (4,))
    with pytest.raises(ConfigurationError, match="no sum with everybody"):
        located_line(attacked("local", 1))


def test_the_command_writes_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, study = tmp_path / "there" / "d.jsonl", STUDIES / "breast_cancer.toml"
    for more in ((), ("--json",)):
        with pytest.raises(SystemExit) as ended:
            moiety.main(["attack", "distances", str(study), "--rounds", "2", "--every", "2", "--out", str(out), *more])
        assert not ended.value.code
    text, printed = capsys.readouterr().out.splitlines()
    assert "colluders: error from one round, from all: 0 honest: " in text
    kept = read_lines(out, LocatingLine)
    assert kept[1].model_dump(exclude={"seconds"}) == kept[0].model_dump(exclude={"seconds"})
    assert LocatingLine.model_validate_json(printed) == kept[1]
    assert kept[0].located[0].rounds == 1
