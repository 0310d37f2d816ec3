"""Training is a function of its arguments; gradients are compared with the closed form of softmax regression."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.evaluation import evaluate
from client_agent.learning.flat_vector import load_vector, model_vector
from client_agent.learning.losses import Batch, cross_entropy
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.sampling import site_seed
from client_agent.learning.trainer import (
    epoch_rows,
    gradient_rows,
    loss_gradient,
    rate_factor,
    train_round,
)
from protocol.messages.control import TrainingSpec
from protocol.shared_model import plain_step

CPU = torch.device("cpu")
SPEC = model_spec("linear", (4,), (), 3)
DATA = Examples(
    np.random.default_rng(5).normal(size=(10, 4)).astype(np.float32),
    np.random.default_rng(6).integers(0, 3, size=10),
)


def update(
    training: TrainingSpec, round: int = 1, seed: int = 3, model: nn.Module | None = None, data: Examples = DATA
) -> np.ndarray:
    return train_round(model or build_model(SPEC, 1), data, training, round=round, seed=seed, device=CPU).update


def closed_form_gradient(
    vector: np.ndarray, data: Examples = DATA, l2: float = 0.0, class_weights: np.ndarray | None = None
) -> np.ndarray:
    """Softmax regression in float64: the weighted mean of (p - onehot) x^T, weights before biases."""
    v, X, y = vector.astype(np.float64), data.X.astype(np.float64), data.y
    classes = len(v) // (X.shape[1] + 1)
    split = classes * X.shape[1]
    logits = X @ v[:split].reshape(classes, -1).T + v[split:]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    weights = (np.ones(classes) if class_weights is None else class_weights)[y]
    error = (p - np.eye(classes)[y]) * (weights / weights.sum())[:, None]
    return np.concatenate([(error.T @ X).ravel(), error.sum(axis=0)]) + l2 * v


def full_batch_steps(start: np.ndarray, training: TrainingSpec, rate: float, data: Examples = DATA) -> np.ndarray:
    """The model after the epochs of one round, float64."""
    vector, velocity = start.astype(np.float64), np.zeros(len(start))
    for _ in range(training.epochs):
        velocity = training.momentum * velocity + closed_form_gradient(vector, data, training.l2)
        vector = vector - rate * velocity
    return vector


def close(found: np.ndarray, expected: np.ndarray, steps: int = 1) -> None:
    # float32 with fewer than 64 additions of terms below 4 per entry and step: error below 64 * 4 * 2^-24 each
    np.testing.assert_allclose(found, expected, rtol=0, atol=steps * 64 * 4 * 2.0**-24)


@pytest.mark.parametrize("l2", [0.0, 0.5])
def test_full_batch_gradient_is_the_closed_form(l2: float) -> None:
    model = build_model(SPEC, 1)
    vector = model_vector(model)
    found = update(TrainingSpec(batch_size=100, l2=l2), model=model)
    assert found.dtype == np.float32
    close(found, closed_form_gradient(vector, l2=l2))
    np.testing.assert_array_equal(model_vector(model), vector)
    assert all(p.grad is None for p in model.parameters())


def test_batches_are_fixed_by_the_seed_and_cycled() -> None:
    training = TrainingSpec(batch_size=4, batches="cycled")
    first, again = ([update(training, number + later) for number in (1, 2, 3)] for later in (0, 3))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(update(training, seed=4), first[0])
    # every example is in exactly one of the three batches of 4, 4 and 2
    full = update(TrainingSpec(batch_size=10))
    close((4 * first[0] + 4 * first[1] + 2 * first[2]) / 10, full.astype(np.float64))


def test_shuffled_batches_are_cut_anew_for_every_pass() -> None:
    shuffled, cycled = TrainingSpec(batch_size=4), TrainingSpec(batch_size=4, batches="cycled")
    of = [gradient_rows(10, shuffled, r, 3) for r in range(1, 10)]
    passes = [np.concatenate(of[start : start + 3]) for start in (0, 3, 6)]
    assert all(sorted(rows) == list(range(10)) for rows in passes)
    assert not np.array_equal(passes[0], passes[1])
    assert not np.array_equal(passes[1], passes[2])
    # a seed's first pass is the same either way
    np.testing.assert_array_equal(of[0], gradient_rows(10, cycled, 4, 3))


def test_cycled_epochs_take_the_same_batches_in_every_round() -> None:
    spec = TrainingSpec(update="local_sgd", batch_size=4, epochs=2, batches="cycled")

    def rows(of: TrainingSpec, round: int) -> list[list[int]]:
        return [batch.tolist() for batch in epoch_rows(10, of, round, 3)]

    assert rows(spec, 1) == rows(spec, 7) == 2 * rows(spec, 1)[:3]
    shuffled = rows(spec.model_copy(update={"batches": "shuffled"}), 1)
    assert shuffled[:3] != shuffled[3:]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_local_sgd_is_start_minus_end_over_the_learning_rate(momentum: float) -> None:
    """Without momentum that is the sum of the steps' gradients."""
    model = build_model(SPEC, 1)
    start = model_vector(model)
    training = TrainingSpec(
        update="local_sgd", batch_size=10, epochs=3, local_learning_rate=0.5, l2=0.1, momentum=momentum
    )
    # a velocity passes half of its error on to the next: at most twice the error of plain steps
    expected = (start - full_batch_steps(start, training, 0.5)) / 0.5
    close(update(training, model=model), expected, steps=3 * 3 * (2 if momentum else 1))
    np.testing.assert_array_equal(model_vector(model), start)


def test_local_sgd_shuffles_by_seed_round_and_epoch() -> None:
    training = TrainingSpec(update="local_sgd", batch_size=3, epochs=2, local_learning_rate=0.5)
    np.testing.assert_array_equal(update(training), update(training))
    assert not np.array_equal(update(training), update(training, round=2))
    assert not np.array_equal(update(training), update(training, seed=4))


def test_the_model_comes_back_when_the_loss_fails() -> None:
    model = build_model(SPEC, 1)
    start, calls = model_vector(model), []

    def breaks_later(model: nn.Module, batch: Batch) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("third step")
        return cross_entropy(model, batch)

    training = TrainingSpec(update="local_sgd", batch_size=3)
    with pytest.raises(ValueError, match="third step"):
        train_round(model, DATA, training, round=1, seed=3, device=CPU, loss=breaks_later)
    np.testing.assert_array_equal(model_vector(model), start)


@pytest.mark.parametrize("kind", ["gradient", "local_sgd"])
def test_dropout_draws_from_the_seed_and_leaves_the_global_state_alone(kind: Literal["gradient", "local_sgd"]) -> None:
    model = build_model(model_spec("mlp", (4,), (8,), 3, dropout=0.5), 1)
    training = TrainingSpec(update=kind, batch_size=10)
    state = torch.get_rng_state()
    first = update(training, model=model)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12)
    np.testing.assert_array_equal(update(training, model=model), first)
    assert not np.array_equal(update(training, round=2, model=model), first)
    assert not np.array_equal(update(training, seed=4, model=model), first)


def test_a_parameter_the_loss_does_not_reach_gets_zero() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    found = update(TrainingSpec(batch_size=10), model=TwoHeads())
    assert np.count_nonzero(found[:15]) == 15
    assert np.count_nonzero(found[15:]) == 0


def test_aggregate_is_applied_in_float32_in_a_fixed_order() -> None:
    random = np.random.default_rng(1)
    vector, aggregate = (random.normal(size=1000).astype(np.float32) for _ in range(2))
    applied = plain_step(vector, aggregate, 0.1)
    assert applied.dtype == np.float32
    one_by_one = [np.float32(v) - np.float32(np.float32(0.1) * a) for v, a in zip(vector, aggregate, strict=True)]
    np.testing.assert_array_equal(applied, np.array(one_by_one, np.float32))


def test_evaluation_pools_over_all_examples() -> None:
    model = build_model(SPEC, 1)
    load_vector(model, np.zeros(15, np.float32))
    many = Examples(np.zeros((2500, 4), np.float32), np.arange(2500) % 5 // 2)
    result = evaluate(model.train(), many, CPU)
    # all logits are equal: the first class is chosen, which 1,000 of 2,500 examples have, and the loss is log 3
    assert result.accuracy == 1000 / 2500
    assert result.class_accuracy == (1.0, 0.0, 0.0)
    assert evaluate(model, Examples(many.X[:2], many.y[:2]), CPU).class_accuracy == (1.0, None, None)
    # a float32 logarithm, and batches of up to 1000 equal terms: pairwise sums of 10 levels, a quotient
    assert result.loss == pytest.approx(np.log(3), rel=16 * 2.0**-24)
    assert model.training


def test_the_probe_is_the_gradient_of_the_mean_loss_over_all_examples() -> None:
    random = np.random.default_rng(4)
    data = Examples(random.normal(size=(1500, 3)).astype(np.float32), random.integers(0, 2, 1500))
    model = build_model(model_spec("linear", (3,), (), 2), 1)
    before = model_vector(model)
    found = loss_gradient(model, data, CPU)
    np.testing.assert_array_equal(model_vector(model), before)
    # sums of about 1000 float32 terms below 4, each rounded by less than 1000 * 2^-24 of it, averaged
    np.testing.assert_allclose(found, closed_form_gradient(before, data), rtol=0, atol=4 * 1000 * 2.0**-24)


def test_the_probe_is_taken_without_dropout_and_keeps_the_training_mode() -> None:
    model = build_model(model_spec("mlp", (4,), (16,), 3, dropout=0.5), 1)
    model.train()
    first, again = (loss_gradient(model, DATA, CPU) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert model.training


def test_site_seeds_differ_by_site_and_study() -> None:
    seeds = {site_seed(study, site) for study in range(5) for site in ("a", "b", "ab")}
    assert len(seeds) == 15
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert site_seed(1, "a") == site_seed(1, "a")


@pytest.mark.parametrize("number", [1, 4])
def test_a_server_learning_rate_equal_to_the_local_one_averages_models(number: int) -> None:
    start = model_vector(build_model(SPEC, 1))
    halves = (Examples(DATA.X[:5], DATA.y[:5]), Examples(DATA.X[5:], DATA.y[5:]))
    training = TrainingSpec(
        update="local_sgd",
        batch_size=5,
        epochs=2,
        local_learning_rate=0.5,
        momentum=0.9,
        learning_rate_decay=0.5,
        decay_every_rounds=2,
    )
    updates = [update(training, number, data=half) for half in halves]
    rate = 0.5 * 0.5 ** ((number - 1) // 2)
    ends = [full_batch_steps(start, training, rate, half) for half in halves]
    average = np.asarray(np.mean(updates, axis=0, dtype=np.float64), dtype=np.float32)
    # two steps, each with the error of two gradients at most
    close(plain_step(start, average, 0.5), np.mean(ends, axis=0), steps=2 * 2)


def test_the_learning_rate_decays_by_rounds() -> None:
    never = TrainingSpec(learning_rate_decay=0.9)
    assert [rate_factor(never, r) for r in (1, 100)] == [1.0, 1.0]
    decays = TrainingSpec(learning_rate_decay=0.5, decay_every_rounds=3, batches="cycled", batch_size=10)
    assert [rate_factor(decays, r) for r in range(1, 8)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    np.testing.assert_array_equal(update(decays, 4), update(decays, 1) / 2)


@pytest.mark.parametrize("number", [1, 2])
def test_momentum_starts_at_zero_in_every_round(number: int) -> None:
    plain, heavy = (TrainingSpec(update="local_sgd", batch_size=10, momentum=m) for m in (0.0, 0.9))
    np.testing.assert_array_equal(update(plain, number), update(heavy, number))


def test_inverse_frequency_weighs_classes_and_sums_to_the_number_of_classes_present() -> None:
    data = Examples(DATA.X[:6], np.array([0, 0, 0, 2, 2, 0]))
    weights = np.array([2 / 3, 0, 4 / 3])  # 4 examples of class 0 and 2 of class 2: 1/4 and 1/2, scaled to the sum 2
    expected = closed_form_gradient(model_vector(build_model(SPEC, 1)), data, class_weights=weights)
    close(update(TrainingSpec(batch_size=6, class_weights="inverse_frequency"), data=data), expected)
