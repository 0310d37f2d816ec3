"""The local finish, and the estimated noise of an update."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from client_agent.learning.data import Examples
from client_agent.learning.local_finish import PULLS, LocalFinish, _batch
from client_agent.learning.losses import BuiltIn, Loss, cross_entropy, weighted_cross_entropy
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.study_file import FinishTable
from client_agent.learning.trainer import train_round
from client_agent.learning.update_noise import UpdateNoise, update_noise
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import TrainingSpec
from tests.kit.present import present

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
