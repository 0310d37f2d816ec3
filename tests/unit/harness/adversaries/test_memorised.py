"""Membership where models memorise: halves, shadows, and a study that is watched round by round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.adversaries.inferring.lines import Told
from harness.adversaries.inferring.membership import told
from harness.adversaries.inferring.memorised_run import MemorisedRun, halved
from harness.adversaries.inferring.shadows import by_shadows, likelihood_ratios
from harness.datasets.breast_cancer import breast_cancer_five_hospitals
from harness.papers.attacked import memorised
from harness.papers.page import Page
from harness.simulate.case import Case, read_case
from harness.simulate.study_files import STUDIES

RNG = np.random.default_rng(8)


def test_halves_are_of_the_same_records_in_the_same_order_and_another_half_by_seed() -> None:
    federation = breast_cancer_five_hospitals(0)
    first, again, other = (halved(federation, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.records.X, other.records.X)
    np.testing.assert_array_equal(first.members, again.members)
    assert 0.4 < np.mean(first.members != other.members) < 0.6
    assert len(first.records) == len(first.members)
    trained = sum(len(site.train) for site in first.federation.contributors)
    assert first.members.sum() == trained
    inside = {row.tobytes() for site in first.federation.contributors for row in site.train.X}
    assert all((row.tobytes() in inside) == one for row, one in zip(first.records.X, first.members, strict=True))


def runs(gap: float, number: int = 16, records: int = 300) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Confidences that are ``gap`` larger inside, over records that are as hard as they are by themselves."""
    hardness = RNG.normal(0, 5, records)
    members = [RNG.random(records) < 0.5 for _ in range(number)]
    return [hardness + gap * inside + RNG.normal(0, 1, records) for inside in members], members


def test_shadows_tell_members_where_models_know_them_and_nobody_where_they_do_not() -> None:
    """A loss alone says little here: records differ more than membership does."""
    confidences, members = runs(3.0)
    assert np.mean([one.auc for one in by_shadows(confidences, members)]) > 0.95
    assert memorised_auc(confidences, members) < 0.75
    nothing = by_shadows(*runs(0.0))
    assert abs(np.mean([one.auc for one in nothing]) - 0.5) < 0.05  # runs of 300 have .033 each, and share records
    assert np.mean([one.at_one_percent for one in nothing]) < 0.03


def memorised_auc(confidences: list[np.ndarray], members: list[np.ndarray]) -> float:
    return float(np.mean([told(c[m], c[~m]).auc for c, m in zip(confidences, members, strict=True)]))


def test_a_record_that_no_shadow_knew_takes_the_mean_of_those_that_were_known() -> None:
    shadows = np.array([[0.0, 4.0], [0.0, 4.0], [1.0, 0.0]])
    inside = np.array([[False, True], [False, True], [False, False]])
    found = likelihood_ratios(np.array([4.0, 0.0]), shadows, inside)
    assert found[0] > 0 > found[1]
    assert np.isfinite(likelihood_ratios(np.array([4.0]), np.zeros((2, 1)), np.zeros((2, 1), bool))).all()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The study of heart disease over data that are bundled."""
    text = (STUDIES / "memorising.toml").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("case") / "memorising.toml"
    path.write_text(text.replace("heart_disease", "breast_cancer").replace("inputs = [13]", "inputs = [30]"))
    return read_case(path)


def test_a_watched_study_says_of_every_round_what_its_model_and_its_average_tell(case: Case) -> None:
    line = MemorisedRun(case, "small_fedavg", 0, rounds=2).line()
    assert line.rounds == (1, 2)
    assert len(line.by_loss) == len(line.by_average) == 2
    assert line.by_averages is not None
    assert len(line.members) == len(line.confidence)
    assert line.known >= 0.5
    other = MemorisedRun(case, "small_fedavg", 1, rounds=1).line()
    assert other.members != line.members
    assert (other.released, other.key) == (1, ("memorising", "small_fedavg", 1))


def test_noise_is_said_as_epsilon_of_every_contributor_and_less_of_it_is_more(case: Case) -> None:
    much, little = (MemorisedRun(case, f"small_noise_{level}", 0, rounds=1).line() for level in (4, 1))
    assert set(much.epsilon) == set(little.epsilon) == set(breast_cancer_five_hospitals(0).names_of_sites[1:])
    assert all(0 < much.epsilon[site] < little.epsilon[site] for site in much.epsilon)
    assert much.members == little.members
    assert MemorisedRun(case, "linear_fedavg", 0, rounds=1).line().epsilon == {}


def test_the_best_round_is_the_same_in_all_seeds(case: Case) -> None:
    lines = [MemorisedRun(case, "linear_fedavg", seed, rounds=2).line() for seed in (0, 1)]
    raised = [
        line.model_copy(update={"by_average": (line.by_average[0], Told(auc=0.9, at_one_percent=0.5))})
        for line in lines
    ]
    assert [one.auc for one in memorised.best_round(raised)] == [0.9, 0.9]
    assert memorised.shadowed(lines) == ()


def test_the_page_part_says_what_has_not_run(tmp_path: Path) -> None:
    page = Page(tmp_path / "privacy.md", "")
    memorised.write(page, [])
    page.write()
    assert "**Not run yet:** 0 runs." in page.path.read_text()
