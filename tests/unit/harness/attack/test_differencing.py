"""Two sums that differ by one site: that site's update where the others stand still, and isolation says so."""

from __future__ import annotations

import numpy as np
import pytest

from harness.attack.attacked_study import AttackedStudy, OpenedSum, Setting
from harness.attack.reconstruction import DifferencedLine, DifferencedRun, difference_error
from harness.papers.attacked import agreement
from harness.simulate.case import read_case
from harness.simulate.study_files import STUDIES
from protocol.errors import ConfigurationError

RNG = np.random.default_rng(2)
CASE = read_case(STUDIES / "breast_cancer.toml")


def run(batch: int, rate: float = 0.1, variant: str = "fedavg", least: int = 3) -> DifferencedLine:
    training = {"batch_size": batch, "batches": "shuffled", "server_learning_rate": rate}
    changes = {"training": training, "parameters": {"least_contributors": least}}
    setting = Setting("here", changes, least_isolation=0.0)
    return DifferencedRun(AttackedStudy(CASE, variant, 0, "city-hospital", setting)).line()


def opened(number: int, weights: dict[str, float], updates: dict[str, np.ndarray]) -> OpenedSum:
    total = np.sum([weights[site] * updates[site] for site in weights], axis=0)
    truth = {site: updates[site].astype(np.float32) for site in weights}
    return OpenedSum(number, "requester", weights, total, truth)


def test_the_difference_of_two_sums_over_the_same_updates_is_the_site_that_is_gone() -> None:
    updates = {site: RNG.normal(size=20).astype(np.float32).astype(np.float64) for site in ("requester", "a", "b")}
    whole = opened(1, {"requester": 1.0, "a": 0.5, "b": 1.0}, updates)
    without = opened(2, {"requester": 1.0, "b": 1.0}, updates)
    assert difference_error([whole, without], "a") < 1e-6
    moved = {**updates, "b": updates["b"] + 0.5 * updates["a"]}
    assert difference_error([whole, opened(2, {"requester": 1.0, "b": 1.0}, moved)], "a") == pytest.approx(1.0)


def test_full_batches_at_nearly_the_same_model_give_the_update_away_and_isolation_says_so() -> None:
    line = run(1_000_000, rate=1e-4)
    assert line.difference < 5e-3
    assert line.predicted < 5e-3
    assert line.achieved <= line.difference


def test_small_fresh_batches_hide_it_and_isolation_says_that_too() -> None:
    line = run(8)
    assert line.predicted > 0.5
    assert line.difference > 1.0
    assert line.achieved == pytest.approx(line.average, rel=0.02)  # which needs no attack: these sites are alike


def test_a_study_without_a_second_sum_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="1 sums were opened, two are needed"):
        run(8, least=4)


def test_how_well_predictions_agree_with_errors() -> None:
    found = agreement([(0.1, 0.2, 0.5), (0.2, 0.3, 0.5), (0.3, 0.1, 0.1)])
    assert found == ("3", "-0.50", ".667", "1.000", "-0.20")
    assert agreement([(0.1, 0.2, 0.3)])[0] == "not run"
