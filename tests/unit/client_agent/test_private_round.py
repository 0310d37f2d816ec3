"""Training with noise: every record is clipped, the noise is the one drawn, nothing else of a record gets out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from client_agent.learning import trainer
from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import model_vector
from client_agent.learning.losses import cross_entropy
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.sampling import drawing_probability, drawn_rows, steps_of
from client_agent.learning.torch_learner import TorchLearner
from client_agent.learning.trainer import NOISE_STEPS, Grid, clipped_sum, private_round, take, train_round
from protocol.arithmetic.discrete_gaussian import discrete_gaussian
from protocol.arithmetic.ring import derive
from protocol.errors import UnusableUpdate
from protocol.messages.control import PrivacySpec, TrainingSpec
from protocol.shared_model import first_model
from tests.kit.studies import study_of

CPU = torch.device("cpu")
SEED = bytes(range(32))
SPEC = model_spec("mlp", (5,), (4,), 3)
EVERYBODY = TrainingSpec(update="gradient", batch_size=40)
PRIVACY = PrivacySpec(record_clip=1.2, noise_multiplier=1.5)
LITTLE = PrivacySpec(record_clip=10.0, noise_multiplier=0.1)


def data(n: int = 40, seed: int = 5) -> Examples:
    random = np.random.default_rng(seed)
    return Examples(random.normal(size=(n, 5)).astype(np.float32), random.integers(0, 3, size=n))


def single_gradients(examples: Examples) -> np.ndarray:
    """Gradients by one backward pass for each record, float64[n, D]."""
    found = []
    for row in range(len(examples)):
        model = build_model(SPEC, 3)
        cross_entropy(model, take(examples, np.array([row]), CPU)).backward()
        parts = [p.grad.numpy().ravel() for p in model.parameters() if p.grad is not None]
        found.append(np.concatenate(parts).astype(np.float64))
    return np.array(found)


def noised(examples: Examples, training: TrainingSpec = EVERYBODY, privacy: PrivacySpec = PRIVACY, seed: bytes = SEED):
    model = build_model(SPEC, 3)
    return private_round(model, examples, training, privacy, round=1, seed=seed, device=CPU, loss=cross_entropy)


def test_the_sum_is_that_of_gradients_clipped_one_by_one():
    each, grid = single_gradients(data()), Grid.of(PRIVACY)
    lengths = np.linalg.norm(each, axis=1, keepdims=True)
    assert (lengths > 1.2).any()
    assert (lengths < 1.2).any()
    expected = (each * np.minimum(1, 1.2 / lengths)).sum(axis=0)

    found = clipped_sum(build_model(SPEC, 3), take(data(), np.arange(40), CPU), cross_entropy, grid)

    assert np.abs(found * grid.step - expected).max() < 40 * 1.2 / 1000


def test_an_update_is_the_clipped_sum_and_the_drawn_noise_over_the_batch_size():
    grid, model = Grid.of(PRIVACY), build_model(SPEC, 3)
    whole = clipped_sum(model, take(data(), np.arange(40), CPU), cross_entropy, grid)
    noise = discrete_gaussian(whole.size, NOISE_STEPS, derive(derive(SEED, "step 0"), "noise"))

    assert np.array_equal(noised(data()), ((whole + noise) * (grid.step / 40)).astype(np.float32))


def test_no_record_moves_the_sum_by_more_than_the_limit_that_the_noise_is_measured_in():
    grid = Grid.of(PRIVACY)
    assert NOISE_STEPS / grid.limit >= PRIVACY.noise_multiplier
    all_of_them = take(data(), np.arange(40), CPU)
    whole = clipped_sum(build_model(SPEC, 3), all_of_them, cross_entropy, grid)
    for left_out in range(40):
        others = take(data(), np.delete(np.arange(40), left_out), CPU)
        moved = whole - clipped_sum(build_model(SPEC, 3), others, cross_entropy, grid)
        assert int((moved.astype(object) ** 2).sum()) <= grid.limit**2


def test_pieces_that_fit_into_memory_add_up_to_the_same(monkeypatch):
    grid, batch = Grid.of(PRIVACY), take(data(), np.arange(40), CPU)
    whole = clipped_sum(build_model(SPEC, 3), batch, cross_entropy, grid)
    monkeypatch.setattr(trainer, "_MOST_ENTRIES", 7 * whole.size)

    in_pieces = clipped_sum(build_model(SPEC, 3), batch, cross_entropy, grid)

    assert np.abs(in_pieces - whole).max() <= 40 * 64  # torch rounds a batch of another size otherwise, by 1e-6 or so


def test_a_record_whose_gradient_is_no_number_adds_nothing():
    examples, grid = data(), Grid.of(PRIVACY)
    broken = Examples(examples.X.copy(), examples.y)
    broken.X[7] = np.inf
    model = build_model(SPEC, 3)

    found = clipped_sum(model, take(broken, np.arange(40), CPU), cross_entropy, grid)

    expected = clipped_sum(model, take(examples, np.delete(np.arange(40), 7), CPU), cross_entropy, grid)
    assert np.abs(found - expected).max() <= 40 * 64


def test_a_clipped_gradient_beyond_its_limit_leaves_nothing(monkeypatch):
    monkeypatch.setattr(trainer, "_SLACK", 1.01)
    with pytest.raises(UnusableUpdate, match="longer than its limit"):
        noised(data())


def test_with_hardly_any_noise_a_round_is_that_of_training_without():
    plain = train_round(build_model(SPEC, 3), data(), EVERYBODY, round=1, seed=0, device=CPU, loss=cross_entropy).update

    found = np.mean([noised(data(), privacy=LITTLE, seed=derive(SEED, str(i))) for i in range(100)], axis=0)

    spread = 1 / 40 / np.sqrt(100)
    assert np.abs(found - plain).max() < 5 * spread


def test_local_steps_move_the_model_that_the_next_step_is_at_and_add_up():
    training = TrainingSpec(
        update="local_sgd", batch_size=40, epochs=3, local_learning_rate=0.2, momentum=0.5, l2=0.1,
        learning_rate_decay=0.5, decay_every_rounds=1,
    )  # fmt: skip
    privacy, model = PrivacySpec(record_clip=1.2, noise_multiplier=1.5), build_model(SPEC, 3)
    before = model_vector(model)
    found = private_round(model, data(), training, privacy, round=2, seed=SEED, device=CPU, loss=cross_entropy)
    assert np.array_equal(model_vector(model), before)

    grid, now = Grid.of(privacy), before.astype(np.float64)
    velocity, total = np.zeros_like(now), np.zeros_like(now)
    for step in range(3):
        torch.nn.utils.vector_to_parameters(torch.from_numpy(now.astype(np.float32)), model.parameters())
        whole = clipped_sum(model, take(data(), np.arange(40), CPU), cross_entropy, grid)
        noise = discrete_gaussian(whole.size, NOISE_STEPS, derive(derive(SEED, f"step {step}"), "noise"))
        velocity = (whole + noise) * (grid.step / 40) + 0.1 * now + 0.5 * velocity
        total = total + 0.5 * velocity
        now = now - 0.2 * 0.5 * velocity

    assert np.abs(found - total).max() < 1e-4


def test_an_empty_batch_is_noise_alone(monkeypatch):
    monkeypatch.setattr("client_agent.learning.trainer.drawn_rows", lambda *_: np.zeros(0, dtype=np.int64))
    noise = discrete_gaussian(39, NOISE_STEPS, derive(derive(SEED, "step 0"), "noise"))
    assert np.array_equal(noised(data()), (noise * (Grid.of(PRIVACY).step / 40)).astype(np.float32))


def test_every_record_is_drawn_by_itself_as_often_as_said():
    drawn = np.zeros((4000, 50), dtype=bool)
    for i in range(4000):
        drawn[i, drawn_rows(50, 10, derive(SEED, str(i)))] = True
    assert np.abs(drawn.mean(axis=0) - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 4000)
    sizes = drawn.sum(axis=1)
    assert abs(sizes.var() - 50 * 0.2 * 0.8) < 1.0  # that of a binomial: nobody is drawn in another's place
    together = np.corrcoef(drawn.T)[np.triu_indices(50, 1)]
    assert np.abs(together).max() < 0.09


def test_a_batch_as_large_as_the_data_takes_all_of_them():
    assert np.array_equal(drawn_rows(8, 8, SEED), np.arange(8))
    assert np.array_equal(drawn_rows(8, 9, SEED), np.arange(8))
    assert (drawing_probability(8, 9), drawing_probability(8, 2)) == (1.0, 0.25)


def test_steps_of_a_round():
    assert steps_of(50, TrainingSpec(update="gradient", batch_size=10)) == 1
    assert steps_of(51, TrainingSpec(update="local_sgd", batch_size=10, epochs=2)) == 12


def test_a_learner_draws_its_noise_from_the_system_whatever_the_seeds(tmp_path):
    spec = model_spec("linear", (5,), (), 3)
    private = study_of(spec).model_copy(update={"training": EVERYBODY, "privacy": PRIVACY})
    for part in ("train", "test"):
        np.savez(tmp_path / f"{part}.npz", X=data().X, y=data().y)
    learner = TorchLearner(private, tmp_path, None, "cpu", 1, tmp_path)
    learner.prepare()

    one, other = (learner.update(first_model(private), 1) for _ in range(2))

    assert one.shape == (18,)
    assert np.isfinite(one).all()
    assert not np.array_equal(one, other)
