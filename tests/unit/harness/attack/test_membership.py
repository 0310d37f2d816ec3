"""Membership of records, and class mixes, beside guessing."""

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
    InferenceLine,
    MemorisedRun,
    Opened,
    Told,
    WatchedRun,
    by_averages,
    by_loss,
    by_reference,
    by_shadows,
    guessed,
    halved,
    likelihood_ratios,
    told,
)
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.simulate.case import Case, read_case
from harness.simulate.study_files import STUDIES

CPU = torch.device("cpu")
RNG = np.random.default_rng(3)
SHADOWS_RNG = np.random.default_rng(8)


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
    reference = told(by_reference(MODEL, last, FIRST, MEMBERS), by_reference(MODEL, last, FIRST, OTHERS))
    assert loss.auc > 0.9
    assert reference.auc > 0.7  # the first model's own losses are noise on top


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


def runs(gap: float, number: int = 16, records: int = 300) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Confidences that are ``gap`` larger inside, over records that are as hard as they are by themselves."""
    hardness = SHADOWS_RNG.normal(0, 5, records)
    members = [SHADOWS_RNG.random(records) < 0.5 for _ in range(number)]
    return [hardness + gap * inside + SHADOWS_RNG.normal(0, 1, records) for inside in members], members


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


def run_of(case: Case, variant: str, seed: int, rounds: int) -> MemorisedRun:
    return MemorisedRun(AttackedStudy(case, variant, seed, rounds=rounds))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The study of heart disease over data that are bundled."""
    text = (STUDIES / "memorising.toml").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("case") / "memorising.toml"
    path.write_text(text.replace("heart_disease", "breast_cancer").replace("inputs = [13]", "inputs = [30]"))
    return read_case(path)


def test_a_watched_study_says_of_every_round_what_its_model_and_its_average_tell(case: Case) -> None:
    line = run_of(case, "small_fedavg", 0, rounds=2).line()
    assert line.rounds == (1, 2)
    assert len(line.by_loss) == len(line.by_average) == 2
    assert line.by_averages is not None
    assert len(line.members) == len(line.confidence)
    assert line.known >= 0.5
    other = run_of(case, "small_fedavg", 1, rounds=1).line()
    assert other.members != line.members
    assert (other.released, other.key) == (1, ("memorising", "small_fedavg", 1))


def test_noise_is_said_as_epsilon_of_every_contributor_and_less_of_it_is_more(case: Case) -> None:
    much, little = (run_of(case, f"small_noise_{level}", 0, rounds=1).line() for level in (4, 1))
    assert set(much.epsilon) == set(little.epsilon) == set(breast_cancer_five_hospitals(0).names_of_sites[1:])
    assert all(0 < much.epsilon[site] < little.epsilon[site] for site in much.epsilon)
    assert much.members == little.members
    assert run_of(case, "linear_fedavg", 0, rounds=1).line().epsilon == {}


# --- what is inferred about every contributor of a study --------------------------------------------------------------


def line(seed: int, site: int, apart: float, distance: float | None) -> InferenceLine:
    nothing = Told(auc=0.5, at_one_percent=0.0)
    return InferenceLine(
        study="s", variant="v", rule="fedavg", requester="r", site=f"c{site}", seed=seed, sites=4, members=1, others=1,
        released=1, by_loss=nothing, by_reference=nothing, by_averages=None, apart=apart, distance=distance, weight=1.0,
        seconds=0.0,
    )  # fmt: skip


def test_what_a_number_explains() -> None:
    aparts = RNG.uniform(0, 1, (5, 4))
    true = [line(s, i, aparts[s, i], 2 * aparts[s, i] + 1) for s in range(5) for i in range(4)]
    noise = [line(s, i, aparts[s, i], float(RNG.normal())) for s in range(5) for i in range(4)]
    found, by_chance = guessed(true, "distance"), guessed(noise, "distance")
    assert found is not None
    assert found.explained == pytest.approx(1.0)
    assert found.ranked == pytest.approx(1.0)
    assert by_chance is not None
    assert by_chance.explained < 0.5
    assert guessed(true, "weight") is None


def test_a_watched_study() -> None:
    lines = list(WatchedRun(AttackedStudy(read_case(STUDIES / "breast_cancer.toml"), "weight_erosion", 0)).lines())
    assert len(lines) == 4
    assert all(one.by_averages is not None and one.released == 10 for one in lines)
    assert all(one.distance is not None and one.distance > 0 for one in lines)
