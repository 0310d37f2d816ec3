"""Losses and targets of every task."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sksurv.datasets import load_veterans_lung_cancer
from sksurv.linear_model import CoxPHSurvivalAnalysis
from torch import nn

from client_agent.learning.data import Examples, LocalData, checked_targets, load_folder, no_targets, save_folder
from client_agent.learning.losses import Batch, cox_loss, task_loss, training_loss
from protocol.errors import ConfigurationError
from protocol.messages.control import LossName, TaskKind, TaskSpec, TrainingSpec
from tests.kit.present import present

# --- losses -----------------------------------------------------------------------------------------------------------


def loss_of(task: TaskSpec, outputs: Any, y: Any) -> float:
    return float(task_loss(task).of(torch.tensor(outputs, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)))


@pytest.mark.parametrize(
    ("task", "outputs", "y", "expected"),
    [
        (TaskSpec(kind=TaskKind.REGRESSION), [[1.0, 2.0], [0.0, 0.0]], [[2.0, 2.0], [0.0, 4.0]], 17 / 4),
        (
            TaskSpec(kind=TaskKind.REGRESSION, loss=LossName.HUBER, huber_delta=2.0),
            [[0.0], [0.0]],
            [[1.0], [5.0]],
            (0.5 + 2 * (5 - 1)) / 2,
        ),
        (TaskSpec(kind=TaskKind.COUNTS), [[0.0], [math.log(3)]], [[2.0], [3.0]], (1 + 3 - 3 * math.log(3)) / 2),
        (
            TaskSpec(kind=TaskKind.MULTI_LABEL),
            [[0.0, math.log(3)]],
            [[1.0, 0.0]],
            (math.log(2) + math.log(4)) / 2,
        ),
    ],
)
def test_losses_have_their_closed_values(task: TaskSpec, outputs: Any, y: Any, expected: float) -> None:
    assert loss_of(task, outputs, y) == pytest.approx(expected, rel=1e-12)
    each = present(task_loss(task).each)
    examples = each(torch.tensor(outputs), torch.tensor(y))
    assert examples.shape == (len(y),)
    assert float(examples.mean()) == pytest.approx(expected, rel=1e-6)


def slow_cox(eta: list[float], time: list[float], event: list[int], *, efron: bool) -> float:
    """The definition, one event after the other, with sums over everybody at risk."""
    total, events = 0.0, sum(event)
    for at in sorted({t for t, e in zip(time, event, strict=True) if e}):
        tied = [i for i, t in enumerate(time) if t == at and event[i]]
        at_risk = sum(math.exp(eta[i]) for i, t in enumerate(time) if t >= at)
        leaving = sum(math.exp(eta[i]) for i in tied)
        for place, i in enumerate(tied):
            left = place / len(tied) * leaving if efron else 0.0
            total -= eta[i] - math.log(at_risk - left)
    return total / events


@pytest.mark.parametrize("efron", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_cox_is_its_definition(seed: int, efron: bool) -> None:
    random = np.random.default_rng(seed)
    eta, time = random.normal(0, 3, 30), random.integers(1, 8, 30).astype(float)
    event = random.integers(0, 2, 30)
    y = torch.tensor(np.column_stack([time, event]))
    found = cox_loss(torch.tensor(eta)[:, None], y, efron=efron)
    assert float(found) == pytest.approx(slow_cox(list(eta), list(time), list(event), efron=efron), rel=1e-10)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_cox_is_least_where_scikit_survival_finds_its_coefficients(ties: str) -> None:
    table, outcome = load_veterans_lung_cancer()
    X = table[["Age_in_years", "Karnofsky_score", "Months_from_Diagnosis"]].to_numpy(float)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    theirs = CoxPHSurvivalAnalysis(ties=ties, tol=1e-12, n_iter=200).fit(X, outcome).coef_
    coefficients = torch.tensor(theirs, requires_grad=True)
    y = torch.tensor(np.column_stack([outcome["Survival_in_days"], outcome["Status"]]))
    (gradient,) = torch.autograd.grad(
        cox_loss((torch.tensor(X) @ coefficients)[:, None], y, efron=ties == "efron"), coefficients
    )
    assert float(gradient.abs().max()) < 1e-6


@pytest.mark.parametrize("efron", [True, False])
@pytest.mark.parametrize(
    ("eta", "time", "event"),
    [
        ([0.0, 1.0], [1.0, 2.0], [0, 0]),
        ([0.5], [1.0], [1]),
        ([200.0, -200.0, 0.0], [1.0, 1.0, 1.0], [1, 1, 1]),
        ([-500.0, 500.0, 0.0], [1.0, 2.0, 2.0], [1, 1, 1]),
    ],
)
def test_cox_has_finite_gradients_and_is_zero_without_events(
    eta: list[float], time: list[float], event: list[int], efron: bool
) -> None:
    outputs = torch.tensor(eta)[:, None].requires_grad_()
    found = cox_loss(outputs, torch.tensor(list(zip(time, event, strict=True)), dtype=torch.float32), efron=efron)
    (gradient,) = torch.autograd.grad(found, outputs)
    assert torch.isfinite(found)
    assert torch.isfinite(gradient).all()
    if not any(event):
        assert found.item() == 0
        assert not gradient.any()


def test_the_training_loss_is_the_tasks() -> None:
    model, batch = nn.Linear(2, 1), Batch(torch.ones(3, 2), torch.tensor([[1.0], [2.0], [3.0]]))
    task = TaskSpec(kind=TaskKind.REGRESSION)
    loss = training_loss(TrainingSpec(), batch.y.numpy(), task)
    assert loss(model, batch).item() == pytest.approx(((model(batch.X) - batch.y) ** 2).mean().item())
    with pytest.raises(ConfigurationError, match="plug-in's, give the site's plug-in file"):
        task_loss(TaskSpec(kind=TaskKind.OWN))


# --- targets ----------------------------------------------------------------------------------------------------------

TAKEN: list[tuple[TaskKind, int, Any, np.dtype[Any], list[int]]] = [
    (TaskKind.CLASSES, 3, np.array([0, 2, 1], np.uint8), np.dtype(np.int64), [3]),
    (TaskKind.CLASSES, 2, np.array([True, False]), np.dtype(np.int64), [2]),
    (TaskKind.MULTI_LABEL, 2, np.array([[0, 1], [1, 1]]), np.dtype(np.float32), [2, 2]),
    (TaskKind.REGRESSION, 1, np.array([1.5, -2.0, 1e6]), np.dtype(np.float32), [3, 1]),
    (TaskKind.REGRESSION, 4, np.ones((3, 2, 2), np.float16), np.dtype(np.float32), [3, 4]),
    (TaskKind.COUNTS, 1, np.array([0, 7], np.int16), np.dtype(np.float32), [2, 1]),
    (TaskKind.SURVIVAL, 1, np.array([[12.5, 1], [3, 0]]), np.dtype(np.float32), [2, 2]),
    (TaskKind.OWN, 2, np.arange(6).reshape(2, 3), np.dtype(np.int64), [2, 3]),
    (TaskKind.OWN, 2, np.ones(2, np.float64), np.dtype(np.float32), [2]),
]


@pytest.mark.parametrize(("kind", "outputs", "y", "dtype", "shape"), TAKEN)
def test_targets_are_taken_in_the_tasks_form(
    kind: TaskKind, outputs: int, y: Any, dtype: np.dtype[Any], shape: list[int]
) -> None:
    found = checked_targets(y, TaskSpec(kind=kind), outputs, "here")
    assert (found.dtype, list(found.shape)) == (dtype, shape)
    np.testing.assert_array_equal(found.reshape(-1), y.reshape(-1))
    none = no_targets(TaskSpec(kind=kind), outputs)
    assert len(none) == 0
    assert kind is TaskKind.OWN or (none.dtype, none.shape[1:]) == (dtype, found.shape[1:])


@pytest.mark.parametrize(
    ("kind", "outputs", "y", "said"),
    [
        (TaskKind.CLASSES, 2, np.array([0, 2]), r"y lies in 0\.\.2, the model's classes are 0\.\.1"),
        (TaskKind.CLASSES, 2, np.array([0.0, 1.0]), r"type float64, expected int64.*\[task\] kind = 'regression'"),
        (TaskKind.CLASSES, 2, np.array([[0], [1]]), "one label for each row"),
        (TaskKind.MULTI_LABEL, 2, np.array([[0, 1], [2, 1]]), "else than 0 and 1 in 1 rows, the first is row 1"),
        (
            TaskKind.MULTI_LABEL,
            3,
            np.array([[0, 1]]),
            r"have shape \[2\], the model has 3 outputs: one number",
        ),
        (TaskKind.REGRESSION, 1, np.array([1.0, np.nan, np.inf]), "NaN or infinity in 2 rows, the first is row 1"),
        (TaskKind.REGRESSION, 1, np.array([1.0, 1e300]), "beyond float32 in 1 rows, the first is row 1"),
        (TaskKind.REGRESSION, 2, np.array([1.0, 2.0]), r"have shape \[\], the model has 2 outputs"),
        (TaskKind.COUNTS, 1, np.array([1, -1]), "no count, .* in 1 rows, the first is row 1"),
        (TaskKind.COUNTS, 1, np.array([0.5]), "no count"),
        (TaskKind.SURVIVAL, 1, np.array([3.0, 4.0]), r"expected np\.column_stack\(\[time, event\]\)"),
        (TaskKind.SURVIVAL, 1, np.array([[3.0, 1], [0, 1]]), "time that is not above 0 in 1 rows, the first is row 1"),
        (TaskKind.SURVIVAL, 1, np.array([[3.0, 2]]), "event other than 0 and 1 in 1 rows"),
        (TaskKind.OWN, 1, np.array(["a"]), "expected numbers"),
    ],
)
def test_what_no_model_could_learn_is_refused_by_row(kind: TaskKind, outputs: int, y: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        checked_targets(y, TaskSpec(kind=kind), outputs, "here")
    assert caught.value.detail.startswith("here: ")
    assert "1e+300" not in caught.value.detail


def test_a_folder_holds_the_targets_of_its_task(tmp_path: Path) -> None:
    survival = TaskSpec(kind=TaskKind.SURVIVAL)
    part = Examples(np.ones((3, 2), np.float32), np.array([[5.0, 1], [7, 0], [9, 1]], np.float32))
    save_folder(tmp_path, LocalData(part, part))
    np.testing.assert_array_equal(load_folder(tmp_path, (2,), 1, survival).test.y, part.y)
    with pytest.raises(ConfigurationError, match=r"train\.npz: the targets of one example have shape \[2\]"):
        load_folder(tmp_path, (2,), 1, TaskSpec(kind=TaskKind.COUNTS))
