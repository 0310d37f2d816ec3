"""Membership of records beside guessing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import load_vector, model_vector
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.trainer import loss_gradient, sample_gradients, take
from harness.attack.attacked_study import AttackedStudy
from harness.attack.membership import (
    MemorisedLine,
    Opened,
    Told,
    by_averages,
    by_loss,
    halved,
    memorised,
    told,
)
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.simulate.case import Case, read_case
from harness.simulate.study_files import STUDIES

CPU = torch.device("cpu")
RNG = np.random.default_rng(3)


def drawn(n: int) -> Examples:
    """Labels that nothing explains: a model that knows them has seen them."""
    return Examples(RNG.normal(size=(n, 20)).astype(np.float32), RNG.integers(0, 2, n))


MEMBERS, OTHERS = drawn(40), drawn(40)
FEW = 6
MODEL = build_model(model_spec("mlp", (20,), (64,), 2), 0)
FIRST = model_vector(MODEL)


def overfitted() -> np.ndarray:
    load_vector(MODEL, FIRST)
    optimiser = torch.optim.Adam(MODEL.parameters(), lr=0.02)
    X, y = torch.from_numpy(MEMBERS.X), torch.from_numpy(MEMBERS.y)
    for _ in range(200):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(MODEL(X), y).backward()
        optimiser.step()
    return model_vector(MODEL)


def test_a_model_that_has_memorised_its_records_gives_them_away() -> None:
    last = overfitted()
    loss = told(by_loss(MODEL, last, MEMBERS), by_loss(MODEL, last, OTHERS))
    assert loss.auc > 0.9


def test_rates() -> None:
    assert told(np.array([3.0, 2.0]), np.array([1.0, 0.0])) == Told(auc=1.0, at_one_percent=1.0)
    assert told(np.array([3.0, 0.5]), np.array([1.0, 0.0])) == Told(auc=0.75, at_one_percent=0.5)


def test_the_average_of_few_gradients_shows_whose_they_are_and_of_a_model_alone_nothing_is_known() -> None:
    load_vector(MODEL, FIRST)
    few = Examples(MEMBERS.X[:FEW], MEMBERS.y[:FEW])
    average = loss_gradient(MODEL, few, CPU).astype(np.float64)
    assert told(*(by_averages(MODEL, [Opened(FIRST, average)], data) for data in (few, OTHERS))).auc > 0.85
    chance = told(by_loss(MODEL, FIRST, MEMBERS), by_loss(MODEL, FIRST, OTHERS))
    assert abs(chance.auc - 0.5) < 0.2  # three standard errors of 40 and 40


def test_gradients_of_single_examples_are_those_of_batches_of_one() -> None:
    load_vector(MODEL, FIRST)
    found = sample_gradients(MODEL, take(MEMBERS, np.arange(3), CPU))
    for row in range(3):
        one = loss_gradient(MODEL, Examples(MEMBERS.X[row : row + 1], MEMBERS.y[row : row + 1]), CPU)
        np.testing.assert_allclose(found[row], one, rtol=2e-4, atol=1e-6)  # float32, in another order


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


def run_of(case: Case, variant: str, seed: int, rounds: int) -> MemorisedLine:
    return memorised(AttackedStudy(case, variant, seed, rounds=rounds))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The study of heart disease over data that are bundled."""
    text = (STUDIES / "memorising.toml").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("case") / "memorising.toml"
    path.write_text(text.replace("heart_disease", "breast_cancer").replace("inputs = [13]", "inputs = [30]"))
    return read_case(path)


def test_a_watched_study_says_of_every_round_what_its_model_and_its_average_tell(case: Case) -> None:
    line = run_of(case, "small_fedavg", 0, rounds=2)
    assert line.rounds == (1, 2)
    assert len(line.by_loss) == len(line.by_average) == 2
    assert line.by_averages is not None
    assert len(line.members) == len(line.confidence)
    assert line.known >= 0.5
    other = run_of(case, "small_fedavg", 1, rounds=1)
    assert other.members != line.members
    assert other.released == 1


def test_noise_is_said_as_epsilon_of_every_contributor_and_less_of_it_is_more(case: Case) -> None:
    much, little = (run_of(case, f"small_noise_{level}", 0, rounds=1) for level in (4, 1))
    assert set(much.epsilon) == set(little.epsilon) == set(breast_cancer_five_hospitals(0).names_of_sites[1:])
    assert all(0 < much.epsilon[site] < little.epsilon[site] for site in much.epsilon)
    assert much.members == little.members
    assert run_of(case, "linear_fedavg", 0, rounds=1).epsilon == {}
