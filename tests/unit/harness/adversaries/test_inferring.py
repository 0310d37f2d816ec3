"""Inference sees what is there to be seen, and calls chance what is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from client_agent.learning.at_requester.sample_gradients import sample_gradients
from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import load_vector, model_vector
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.trainer import loss_gradient, take
from harness.adversaries.inferring.class_mix import guessed
from harness.adversaries.inferring.lines import InferenceLine, Told
from harness.adversaries.inferring.membership import Opened, by_averages, by_loss, by_reference, told
from harness.adversaries.inferring.watched_run import WatchedRun
from harness.papers.attacked import inference
from harness.papers.page import Page
from harness.simulate.case import read_case

CPU = torch.device("cpu")
RNG = np.random.default_rng(3)
STUDIES = Path(__file__).parents[4] / "harness" / "studies"


def drawn(n: int) -> Examples:
    """Labels that nothing explains: a model that knows them has seen them."""
    return Examples(RNG.normal(size=(n, 20)).astype(np.float32), RNG.integers(0, 2, n))


MEMBERS, OTHERS = drawn(40), drawn(40)
FEW = 6
MODEL = build_model(model_spec("mlp", (20,), (64,), 2), 0)
FIRST = model_vector(MODEL)


def memorised() -> np.ndarray:
    load_vector(MODEL, FIRST)
    optimiser = torch.optim.Adam(MODEL.parameters(), lr=0.02)
    X, y = torch.from_numpy(MEMBERS.X), torch.from_numpy(MEMBERS.y)
    for _ in range(200):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(MODEL(X), y).backward()
        optimiser.step()
    return model_vector(MODEL)


def test_a_model_that_has_memorised_its_records_gives_them_away() -> None:
    last = memorised()
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


def test_a_watched_study_and_its_page(tmp_path: Path) -> None:
    lines = list(WatchedRun(read_case(STUDIES / "breast_cancer.toml"), "weight_erosion", None, 0).lines())
    assert len(lines) == 4
    assert all(one.by_averages is not None and one.released == 10 for one in lines)
    assert all(one.distance is not None and one.distance > 0 for one in lines)
    page = Page(tmp_path / "privacy.md", "What a model tells")
    inference.membership(page, lines, STUDIES)
    inference.class_mix(page, lines, STUDIES)
    page.write()
    text = (tmp_path / "privacy.md").read_text()
    assert "not run" in text
    assert "| breast cancer, 5 sites, linear | weight_erosion | 10 |" in text
