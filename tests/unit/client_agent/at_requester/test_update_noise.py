"""The estimated noise of an update against its variance over many data sets from the same population."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from client_agent.learning.at_requester.update_noise import UpdateNoise, update_noise
from client_agent.learning.data import Examples
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.trainer import train_round
from client_agent.tasks.losses import Loss, cross_entropy
from protocol.errors import UnusableUpdate
from protocol.messages.control import TrainingSpec

CPU = torch.device("cpu")
FEATURES = 6
MODEL = model_spec("linear", (FEATURES,), (), 2)
GRADIENT = TrainingSpec(update="gradient", batch_size=64)
LOCAL_SGD = TrainingSpec(update="local_sgd", batch_size=8, epochs=1, local_learning_rate=0.05)


def sample(n: int, seed: int) -> Examples:
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, FEATURES)).astype(np.float32) * np.linspace(0.5, 2, FEATURES, dtype=np.float32)
    y = (X @ np.linspace(-1, 1, FEATURES) + random.logistic(size=n) > 0).astype(np.int64)
    return Examples(X, y)


def noise(training: TrainingSpec, data: Examples, clip_norm: float, loss: Loss | None = None) -> UpdateNoise:
    model = build_model(MODEL, 3)
    return update_noise(model, data, training, round=1, seed=5, device=CPU, clip_norm=clip_norm, loss=loss)


def gradients(data: Examples) -> np.ndarray:
    """Every example's gradient of the softmax regression's loss, in closed form."""
    W, bias = (parameter.detach().numpy().astype(np.float64) for parameter in build_model(MODEL, 3).parameters())
    logits = data.X @ W.T + bias
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    residual = p / p.sum(axis=1, keepdims=True) - np.eye(2)[data.y]
    return np.concatenate([(residual[:, :, None] * data.X[:, None, :]).reshape(len(data), -1), residual], axis=1)


def truth_of_gradients(n: int, clip_norm: float) -> float:
    """Over 4000 data sets the variance of a clipped mean gradient is known to a few per cent."""
    means = gradients(sample(4000 * n, 99)).reshape(4000, n, -1).mean(axis=1)
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return float((means * np.minimum(1, clip_norm / lengths)).var(axis=0, ddof=1).sum())


def truth_of_epochs(n: int, sets: int) -> float:
    model = build_model(MODEL, 3)
    found = [
        train_round(model, sample(n, 10_000 + i), LOCAL_SGD, round=1, seed=5, device=CPU).update for i in range(sets)
    ]
    return float(np.array(found).var(axis=0, ddof=1).sum())


def separately(model: Any, batch: Any) -> torch.Tensor:
    """The built-in loss under another name: then halves are taken."""
    return cross_entropy(model, batch)


@pytest.mark.parametrize("clip_norm", [1024.0, 0.25], ids=["whole", "clipped"])
@pytest.mark.parametrize(("loss", "slack"), [(None, 0.12), (separately, 0.15)], ids=["samples", "halves"])
def test_a_gradients_noise_is_its_variance_over_data_sets(clip_norm: float, loss: Loss | None, slack: float) -> None:
    known = truth_of_gradients(64, clip_norm)
    found = [noise(GRADIENT, sample(64, seed), clip_norm, loss) for seed in range(60)]
    assert np.mean([one.variance for one in found]) == pytest.approx(known, rel=slack)
    within = np.mean([abs(one.variance - known) <= 2 * one.error for one in found])
    assert within >= (0.85 if loss is None else 0.5), "the halves' error is that of the splits alone"


def test_an_epochs_noise_is_its_variance_over_data_sets() -> None:
    known = truth_of_epochs(24, sets=200)
    found = [noise(LOCAL_SGD, sample(24, seed), 1024.0) for seed in range(25)]
    assert np.mean([one.variance for one in found]) == pytest.approx(known, rel=0.35)
    assert np.mean([abs(one.variance - known) <= 3 * one.error for one in found]) >= 0.7


def test_a_smaller_batch_is_noisier_and_one_example_says_nothing() -> None:
    data = sample(64, 1)
    small = noise(GRADIENT.model_copy(update={"batch_size": 8}), data, 1024.0).variance
    assert 3 < small / noise(GRADIENT, data, 1024.0).variance < 20
    single = noise(GRADIENT.model_copy(update={"batch_size": 1}), data, 1024.0).variance
    assert single == pytest.approx(64 * noise(GRADIENT, data, 1024.0).variance, rel=1e-6)
    with pytest.raises(UnusableUpdate, match="two training examples at least"):
        noise(GRADIENT, sample(1, 1), 1.0)
