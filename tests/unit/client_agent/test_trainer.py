"""Training is a function of its arguments; gradients are compared with the closed form of softmax regression."""

from __future__ import annotations

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
    apply_aggregate,
    compute_update,
    epoch_rows,
    gradient_rows,
    loss_gradient,
    rate_factor,
)
from protocol.messages.control import TrainingSpec

CPU = torch.device("cpu")
SPEC = model_spec("linear", (4,), (), 3)
DATA = Examples(
    np.random.default_rng(5).normal(size=(10, 4)).astype(np.float32),
    np.random.default_rng(6).integers(0, 3, size=10),
)


def closed_form_gradient(vector: np.ndarray, X: np.ndarray, y: np.ndarray, l2: float = 0.0) -> np.ndarray:
    """Softmax regression in float64: (p - onehot) x^T / n, weights before biases."""
    v = vector.astype(np.float64)
    logits = X.astype(np.float64) @ v[:12].reshape(3, 4).T + v[12:]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    error = (p - np.eye(3)[y]) / len(y)
    return np.concatenate([(error.T @ X).ravel(), error.sum(axis=0)]) + l2 * v


def close(found: np.ndarray, expected: np.ndarray, steps: int = 1) -> None:
    # float32 with fewer than 64 additions of terms below 4 per entry and step: error below 64 * 4 * 2^-24 each
    np.testing.assert_allclose(found, expected, rtol=0, atol=steps * 64 * 4 * 2.0**-24)


@pytest.mark.parametrize("l2", [0.0, 0.5])
def test_full_batch_gradient_is_the_closed_form(l2: float) -> None:
    model = build_model(SPEC, 1)
    vector = model_vector(model)
    update = compute_update(model, DATA, TrainingSpec(batch_size=100, l2=l2), round=1, seed=3, device=CPU)
    assert update.dtype == np.float32
    close(update, closed_form_gradient(vector, DATA.X, DATA.y, l2))
    np.testing.assert_array_equal(model_vector(model), vector)
    assert all(p.grad is None for p in model.parameters())


def test_batches_are_fixed_by_the_seed_and_cycled() -> None:
    model = build_model(SPEC, 1)
    training = TrainingSpec(batch_size=4, batches="cycled")

    def of(round_number: int, seed: int = 3) -> np.ndarray:
        return compute_update(model, DATA, training, round=round_number, seed=seed, device=CPU)

    first = [of(r) for r in range(1, 4)]
    for r in range(1, 4):
        np.testing.assert_array_equal(of(r + 3), first[r - 1])
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(of(1, seed=4), first[0])
    # every example is in exactly one of the three batches of 4, 4 and 2
    full = compute_update(model, DATA, TrainingSpec(batch_size=10), round=1, seed=3, device=CPU)
    close((4 * first[0] + 4 * first[1] + 2 * first[2]) / 10, full.astype(np.float64))


def test_shuffled_batches_are_cut_anew_for_every_pass() -> None:
    shuffled, cycled = TrainingSpec(batch_size=4), TrainingSpec(batch_size=4, batches="cycled")
    of = [gradient_rows(10, shuffled, r, 3) for r in range(1, 10)]
    for start in (0, 3, 6):
        assert sorted(np.concatenate(of[start : start + 3])) == list(range(10))
    assert not np.array_equal(np.concatenate(of[:3]), np.concatenate(of[3:6]))
    assert not np.array_equal(np.concatenate(of[3:6]), np.concatenate(of[6:]))
    # a seed's first pass is the same either way
    np.testing.assert_array_equal(of[0], gradient_rows(10, cycled, 4, 3))


def test_cycled_epochs_take_the_same_batches_in_every_round() -> None:
    spec = TrainingSpec(update="local_sgd", batch_size=4, epochs=2, batches="cycled")
    first, later = epoch_rows(10, spec, 1, 3), epoch_rows(10, spec, 7, 3)
    assert [rows.tolist() for rows in first] == [rows.tolist() for rows in later]
    assert [rows.tolist() for rows in first[:3]] == [rows.tolist() for rows in first[3:]]
    shuffled = epoch_rows(10, spec.model_copy(update={"batches": "shuffled"}), 1, 3)
    assert [rows.tolist() for rows in shuffled[:3]] != [rows.tolist() for rows in shuffled[3:]]


def test_local_sgd_is_the_sum_of_its_step_gradients() -> None:
    model = build_model(SPEC, 1)
    start = model_vector(model)
    one_batch = TrainingSpec(update="local_sgd", batch_size=10, epochs=3, local_learning_rate=0.5, l2=0.1)
    update = compute_update(model, DATA, one_batch, round=1, seed=3, device=CPU)
    vector, total = start.astype(np.float64), np.zeros(15)
    for _ in range(3):
        step = closed_form_gradient(vector, DATA.X, DATA.y, 0.1)
        total += step
        vector = vector - 0.5 * step
    close(update, total, steps=3 * 3)
    np.testing.assert_array_equal(model_vector(model), start)


def test_local_sgd_shuffles_by_seed_round_and_epoch() -> None:
    model = build_model(SPEC, 1)
    training = TrainingSpec(update="local_sgd", batch_size=3, epochs=2, local_learning_rate=0.5)

    def of(round_number: int, seed: int) -> np.ndarray:
        return compute_update(model, DATA, training, round=round_number, seed=seed, device=CPU)

    np.testing.assert_array_equal(of(1, 3), of(1, 3))
    assert not np.array_equal(of(1, 3), of(2, 3))
    assert not np.array_equal(of(1, 3), of(1, 4))


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
        compute_update(model, DATA, training, round=1, seed=3, device=CPU, loss=breaks_later)
    np.testing.assert_array_equal(model_vector(model), start)


def test_dropout_draws_from_the_seed_and_leaves_the_global_state_alone() -> None:
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    state = torch.get_rng_state()
    training = TrainingSpec(batch_size=10)
    first = compute_update(model, DATA, training, round=1, seed=3, device=CPU)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12)
    np.testing.assert_array_equal(compute_update(model, DATA, training, round=1, seed=3, device=CPU), first)
    assert not np.array_equal(compute_update(model, DATA, training, round=2, seed=3, device=CPU), first)


def test_a_parameter_the_loss_does_not_reach_gets_zero() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    update = compute_update(TwoHeads(), DATA, TrainingSpec(batch_size=10), round=1, seed=3, device=CPU)
    assert np.count_nonzero(update[:15]) == 15
    assert np.count_nonzero(update[15:]) == 0


def test_aggregate_is_applied_in_float32_in_a_fixed_order() -> None:
    random = np.random.default_rng(1)
    vector, aggregate = (random.normal(size=1000).astype(np.float32) for _ in range(2))
    applied = apply_aggregate(vector, aggregate, 0.1)
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
    found = loss_gradient(model, data, torch.device("cpu"))
    np.testing.assert_array_equal(model_vector(model), before)
    W, b = before[:6].reshape(2, 3).astype(np.float64), before[6:].astype(np.float64)
    logits = data.X.astype(np.float64) @ W.T + b
    residual = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) - np.eye(2)[data.y]
    expected = np.concatenate([(residual.T @ data.X / 1500).ravel(), residual.mean(axis=0)])
    # sums of about 1000 float32 terms below 4, each rounded by less than 1000 * 2^-24 of it, averaged
    np.testing.assert_allclose(found, expected, rtol=0, atol=4 * 1000 * 2.0**-24)


def test_the_probe_is_taken_without_dropout_and_keeps_the_training_mode() -> None:
    random = np.random.default_rng(5)
    data = Examples(random.normal(size=(8, 4)).astype(np.float32), random.integers(0, 2, 8))
    model = build_model(model_spec("mlp", (4,), (16,), 2, dropout=0.5), 1)
    model.train()
    first, again = (loss_gradient(model, data, torch.device("cpu")) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert model.training


def test_site_seeds_differ_by_site_and_study() -> None:
    seeds = {site_seed(study, site) for study in range(5) for site in ("a", "b", "ab")}
    assert len(seeds) == 15
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert site_seed(1, "a") == site_seed(1, "a")


def test_momentum_is_start_minus_end_over_the_learning_rate() -> None:
    model = build_model(SPEC, 1)
    start = model_vector(model)
    training = TrainingSpec(update="local_sgd", batch_size=10, epochs=3, local_learning_rate=0.5, l2=0.1, momentum=0.5)
    update = compute_update(model, DATA, training, round=1, seed=3, device=CPU)
    vector, velocity = start.astype(np.float64), np.zeros(15)
    for _ in range(3):
        velocity = 0.5 * velocity + closed_form_gradient(vector, DATA.X, DATA.y, 0.1)
        vector = vector - 0.5 * velocity
    # a velocity passes half of its error on to the next: at most twice the error of plain steps
    close(update, (start - vector) / 0.5, steps=2 * 3 * 3)


def test_a_server_learning_rate_equal_to_the_local_one_averages_models() -> None:
    model = build_model(SPEC, 1)
    start = model_vector(model)
    halves = (Examples(DATA.X[:5], DATA.y[:5]), Examples(DATA.X[5:], DATA.y[5:]))
    for number in (1, 4):
        training = TrainingSpec(
            update="local_sgd",
            batch_size=5,
            epochs=2,
            local_learning_rate=0.5,
            momentum=0.9,
            learning_rate_decay=0.5,
            decay_every_rounds=2,
        )
        updates = [compute_update(model, half, training, round=number, seed=3, device=CPU) for half in halves]
        ends = []
        for half in halves:
            vector, velocity, rate = start.astype(np.float64), np.zeros(15), 0.5 * 0.5 ** ((number - 1) // 2)
            for _ in range(2):
                velocity = 0.9 * velocity + closed_form_gradient(vector, half.X, half.y)
                vector = vector - rate * velocity
            ends.append(vector)
        average = np.asarray(np.mean(updates, axis=0, dtype=np.float64), dtype=np.float32)
        # two steps, each with the error of two gradients at most
        close(apply_aggregate(start, average, 0.5), np.mean(ends, axis=0), steps=2 * 2)


def test_the_learning_rate_decays_by_rounds() -> None:
    never = TrainingSpec(learning_rate_decay=0.9)
    assert [rate_factor(never, r) for r in (1, 100)] == [1.0, 1.0]
    decays = TrainingSpec(learning_rate_decay=0.5, decay_every_rounds=3, batches="cycled")
    assert [rate_factor(decays, r) for r in range(1, 8)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    model = build_model(SPEC, 1)
    first, fourth = (
        compute_update(model, DATA, decays.model_copy(update={"batch_size": 10}), round=r, seed=3, device=CPU)
        for r in (1, 4)
    )
    np.testing.assert_array_equal(fourth, first / 2)


def test_momentum_starts_at_zero_in_every_round() -> None:
    model = build_model(SPEC, 1)
    plain, heavy = (TrainingSpec(update="local_sgd", batch_size=10, momentum=m) for m in (0.0, 0.9))
    for r in (1, 2):
        np.testing.assert_array_equal(
            compute_update(model, DATA, plain, round=r, seed=3, device=CPU),
            compute_update(model, DATA, heavy, round=r, seed=3, device=CPU),
        )


def test_inverse_frequency_weighs_classes_and_sums_to_the_number_of_classes_present() -> None:
    y = np.array([0, 0, 0, 2, 2, 0])
    X = DATA.X[:6]
    model = build_model(SPEC, 1)
    training = TrainingSpec(batch_size=6, class_weights="inverse_frequency")
    update = compute_update(model, Examples(X, y), training, round=1, seed=3, device=CPU)
    weights = np.array([2 / 3, 0, 4 / 3])  # 4 examples of class 0 and 2 of class 2: 1/4 and 1/2, scaled to the sum 2
    v = model_vector(model).astype(np.float64)
    logits = X.astype(np.float64) @ v[:12].reshape(3, 4).T + v[12:]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    error = (p - np.eye(3)[y]) * weights[y][:, None] / weights[y].sum()
    close(update, np.concatenate([(error.T @ X).ravel(), error.sum(axis=0)]))


def test_local_sgd_draws_dropout_from_the_seed() -> None:
    model = build_model(model_spec("mlp", (4,), (8,), 3, dropout=0.5), 1)
    training = TrainingSpec(update="local_sgd", batch_size=5)

    def of(round_number: int, seed: int) -> np.ndarray:
        return compute_update(model, DATA, training, round=round_number, seed=seed, device=CPU)

    first = of(1, 3)
    torch.manual_seed(99)
    np.testing.assert_array_equal(of(1, 3), first)
    assert not np.array_equal(of(1, 4), first)
