"""The tasks' losses: against closed values, a slow reference, and what scikit-survival finds by its own likelihood."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sksurv.datasets import load_veterans_lung_cancer
from sksurv.linear_model import CoxPHSurvivalAnalysis
from torch import nn

from client_agent.tasks.cox import cox_loss
from client_agent.tasks.losses import Batch, task_loss, training_loss
from protocol.errors import ConfigurationError
from protocol.messages.control import LossName, TaskKind, TaskSpec, TrainingSpec


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
    each = task_loss(task).each
    assert each is not None
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
