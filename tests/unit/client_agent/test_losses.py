"""Losses and targets of every task, the local finish, and the estimated noise of an update."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sksurv.datasets import load_veterans_lung_cancer
from sksurv.linear_model import CoxPHSurvivalAnalysis
from torch import nn

from client_agent.learning.data import Examples, LocalData, checked_targets, load_folder, no_targets, save_folder
from client_agent.learning.local_finish import PULLS, LocalFinish, _batch
from client_agent.learning.losses import (
    Batch,
    BuiltIn,
    Loss,
    cox_loss,
    cross_entropy,
    task_loss,
    training_loss,
    weighted_cross_entropy,
)
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.study_file import FinishTable
from client_agent.learning.trainer import train_round
from client_agent.learning.update_noise import UpdateNoise, update_noise
from protocol.errors import ConfigurationError, UnusableUpdate
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


# --- finish -----------------------------------------------------------------------------------------------------------

MODEL = model_spec("linear", (4,), (), 2)
NOBODY = Examples(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))


def sample(n: int, seed: int, turned: float = 1.0) -> Examples:
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 4)).astype(np.float32)
    y = (turned * X @ np.array([2.0, -1.0, 0.5, 0.0]) + random.logistic(size=n) > 0).astype(np.int64)
    return Examples(X, y)


def finish(seen: Examples, held: Examples = NOBODY, l2: float = 0.0) -> LocalFinish:
    return LocalFinish(build_model(MODEL, 1), cross_entropy, l2, seen, held)


def fitted(data: Examples) -> np.ndarray:
    return np.asarray(finish(data)._minimised(data, torch.zeros(10, dtype=torch.float64), 1e-3), np.float32)


def test_a_shared_model_of_the_same_patients_is_hardly_moved_and_one_of_others_is() -> None:
    alike, others = fitted(sample(20_000, 7)), fitted(sample(20_000, 8, turned=-1.0))
    near = finish(sample(60, 1), sample(200, 2)).run(alike)
    far = finish(sample(60, 1), sample(200, 2)).run(others)
    assert near.pull is None or near.pull >= 0.1
    assert present(far.pull) < 0.1
    assert np.linalg.norm(near.vector - alike) < 0.3 < np.linalg.norm(far.vector - others)


def test_the_finished_model_is_the_minimum() -> None:
    seen, held, start = sample(60, 1), sample(40, 2), fitted(sample(500, 3, turned=-1.0))
    ended = finish(seen, held, l2=0.01).run(start)
    assert ended.pull in PULLS
    both = Examples(np.concatenate([seen.X, held.X]), np.concatenate([seen.y, held.y]))
    x = torch.from_numpy(ended.vector.astype(np.float64)).requires_grad_(True)
    W, bias = x[:8].reshape(2, 4), x[8:]
    logits = torch.from_numpy(both.X.astype(np.float64)) @ W.T + bias
    value = torch.nn.functional.cross_entropy(logits, torch.from_numpy(both.y)) + 0.005 * x.square().sum()
    value = value + ended.pull / 2 * (x - torch.from_numpy(start.astype(np.float64))).square().sum()
    value.backward()
    assert float(present(x.grad).norm()) < 1e-5


def test_classes_weigh_in_a_finish_as_in_training() -> None:
    """The finish is computed in float64, the weights of classes are float32."""
    data = sample(60, 1)
    loss = weighted_cross_entropy(np.concatenate([data.y, np.zeros(60, np.int64)]))
    ended = LocalFinish(build_model(MODEL, 1), loss, 0.0, data, sample(40, 2)).run(fitted(sample(500, 3)))
    assert ended.vector.dtype == np.float32
    assert np.isfinite(ended.vector).all()


@pytest.mark.parametrize("pull", [1.0, 0.1, 0.03])
def test_leaving_one_out_is_nearly_what_refitting_without_each_gives(pull: float) -> None:
    data, start = sample(40, 4), torch.from_numpy(fitted(sample(500, 5)).astype(np.float64))
    whole, losses = finish(data), []
    for i in range(len(data)):
        rest = np.delete(np.arange(len(data)), i)
        scaled = pull * len(data) / len(rest)  # the left-out objective keeps its sum's weight
        x = whole._minimised(Examples(data.X[rest], data.y[rest]), start, scaled)
        losses.append(float(whole._mean_loss(x, _batch(Examples(data.X[i : i + 1], data.y[i : i + 1])))))
    assert whole.left_out_loss(start, pull) == pytest.approx(np.mean(losses), rel=0.02)
    other = finish(data).run(fitted(sample(500, 6, turned=-1.0)))
    assert other.pull is not None


def test_what_is_held_out_and_what_cannot_be_finished() -> None:
    seen, held = FinishTable(held_out=0.25).parts(sample(40, 1), 3)
    assert (len(seen), len(held)) == (30, 10)
    assert len(FinishTable(choose="leave_one_out").parts(sample(40, 1), 3)[1]) == 0
    with pytest.raises(ConfigurationError, match="leaves one part empty"):
        FinishTable(held_out=0.01).parts(sample(4, 1), 3)
    personal = build_model(model_spec("mlp", (4,), (3,), 2, personal=("target",)), 1)
    with pytest.raises(ConfigurationError, match="without personal layers"):
        LocalFinish(personal, cross_entropy, 0.0, sample(8, 1), NOBODY).run(np.zeros(15, np.float32))
    whole = BuiltIn(cross_entropy.of)
    with pytest.raises(ConfigurationError, match="take held_out"):
        LocalFinish(build_model(MODEL, 1), whole, 0.0, sample(8, 1), NOBODY).run(np.zeros(10, np.float32))


def test_frozen_layers_stay_and_the_rest_is_moved() -> None:
    model = build_model(model_spec("mlp", (4,), (3,), 2), 1)
    first, *_ = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    first.requires_grad_(False)
    before = first.weight.clone()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    shared = torch.cat([parameter.detach().flatten() for parameter in trained]).numpy()
    ended = LocalFinish(model, cross_entropy, 0.0, sample(60, 1), sample(200, 2)).run(shared)
    assert ended.vector.size == shared.size == 8
    assert ended.pull is not None
    assert torch.equal(first.weight, before)


def test_what_is_no_number_finishes_nothing() -> None:
    wild = Examples(np.full((20, 4), np.inf, np.float32), np.zeros(20, np.int64))
    for seen, held in ((sample(20, 1), wild), (wild, sample(20, 1)), (wild, NOBODY)):
        with pytest.raises(UnusableUpdate, match="leaves the range of numbers"):
            finish(seen, held).run(np.ones(10, np.float32))


# --- update noise -----------------------------------------------------------------------------------------------------

CPU = torch.device("cpu")
FEATURES = 6
NOISE_MODEL = model_spec("linear", (FEATURES,), (), 2)
GRADIENT = TrainingSpec(update="gradient", batch_size=64)
LOCAL_SGD = TrainingSpec(update="local_sgd", batch_size=8, epochs=1, local_learning_rate=0.05)


def drawn_sample(n: int, seed: int) -> Examples:
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, FEATURES)).astype(np.float32) * np.linspace(0.5, 2, FEATURES, dtype=np.float32)
    y = (X @ np.linspace(-1, 1, FEATURES) + random.logistic(size=n) > 0).astype(np.int64)
    return Examples(X, y)


def noise(training: TrainingSpec, data: Examples, clip_norm: float, loss: Loss | None = None) -> UpdateNoise:
    model = build_model(NOISE_MODEL, 3)
    return update_noise(model, data, training, round=1, seed=5, device=CPU, clip_norm=clip_norm, loss=loss)


def gradients(data: Examples) -> np.ndarray:
    """Every example's gradient of the softmax regression's loss, in closed form."""
    W, bias = (parameter.detach().numpy().astype(np.float64) for parameter in build_model(NOISE_MODEL, 3).parameters())
    logits = data.X @ W.T + bias
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    residual = p / p.sum(axis=1, keepdims=True) - np.eye(2)[data.y]
    return np.concatenate([(residual[:, :, None] * data.X[:, None, :]).reshape(len(data), -1), residual], axis=1)


@cache
def truth_of_gradients(n: int, clip_norm: float) -> float:
    """Over 4000 data sets the variance of a clipped mean gradient is known to a few per cent."""
    means = gradients(drawn_sample(4000 * n, 99)).reshape(4000, n, -1).mean(axis=1)
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return float((means * np.minimum(1, clip_norm / lengths)).var(axis=0, ddof=1).sum())


def truth_of_epochs(n: int, sets: int) -> float:
    model = build_model(NOISE_MODEL, 3)
    found = [
        train_round(model, drawn_sample(n, 10_000 + i), LOCAL_SGD, round=1, seed=5, device=CPU).update
        for i in range(sets)
    ]
    return float(np.array(found).var(axis=0, ddof=1).sum())


def separately(model: Any, batch: Any) -> torch.Tensor:
    """The built-in loss under another name: then halves are taken."""
    return cross_entropy(model, batch)


@pytest.mark.parametrize("clip_norm", [1024.0, 0.25], ids=["whole", "clipped"])
@pytest.mark.parametrize(("loss", "slack"), [(None, 0.12), (separately, 0.15)], ids=["samples", "halves"])
def test_a_gradients_noise_is_its_variance_over_data_sets(clip_norm: float, loss: Loss | None, slack: float) -> None:
    known = truth_of_gradients(64, clip_norm)
    found = [noise(GRADIENT, drawn_sample(64, seed), clip_norm, loss) for seed in range(60)]
    assert np.mean([one.variance for one in found]) == pytest.approx(known, rel=slack)
    within = np.mean([abs(one.variance - known) <= 2 * one.error for one in found])
    assert within >= (0.85 if loss is None else 0.5), "the halves' error is that of the splits alone"


def test_an_epochs_noise_is_its_variance_over_data_sets() -> None:
    known = truth_of_epochs(24, sets=200)
    found = [noise(LOCAL_SGD, drawn_sample(24, seed), 1024.0) for seed in range(25)]
    assert np.mean([one.variance for one in found]) == pytest.approx(known, rel=0.35)
    assert np.mean([abs(one.variance - known) <= 3 * one.error for one in found]) >= 0.7


def test_a_smaller_batch_is_noisier_and_one_example_says_nothing() -> None:
    data = drawn_sample(64, 1)
    small = noise(GRADIENT.model_copy(update={"batch_size": 8}), data, 1024.0).variance
    assert 3 < small / noise(GRADIENT, data, 1024.0).variance < 20
    single = noise(GRADIENT.model_copy(update={"batch_size": 1}), data, 1024.0).variance
    assert single == pytest.approx(64 * noise(GRADIENT, data, 1024.0).variance, rel=1e-6)
    with pytest.raises(UnusableUpdate, match="two training examples at least"):
        noise(GRADIENT, drawn_sample(1, 1), 1.0)
