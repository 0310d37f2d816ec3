"""The training path on a CUDA device; without one these tests are skipped and say what was not tested."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from client_agent.learning.data import Examples
from client_agent.learning.evaluation import evaluate
from client_agent.learning.flat_vector import load_vector, model_vector, pick_device
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.trainer import train_round
from protocol.messages.control import ModelSpec, TrainingSpec

pytestmark = pytest.mark.gpu

SPECS = [
    model_spec("linear", (1, 8, 8), (), 10),
    model_spec("mlp", (1, 8, 8), (32,), 10),
    model_spec("cnn", (1, 8, 8), (8, 16, 32), 10),
]
TRAININGS = [TrainingSpec(batch_size=64), TrainingSpec(update="local_sgd", batch_size=16, epochs=2)]


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("NOT TESTED: training, evaluation and vector transfer on a GPU, because no CUDA device is here")
    return pick_device("auto")


def examples() -> Examples:
    random = np.random.default_rng(3)
    return Examples(random.normal(size=(64, 1, 8, 8)).astype(np.float32), random.integers(0, 10, size=64))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: training.update)
def test_updates_agree_with_the_cpu(cuda: torch.device, spec: ModelSpec, training: TrainingSpec) -> None:
    """float32 sums in another order: relative to the update's norm, errors stay far below 1e-3.

    Each gradient entry sums fewer than 2^10 products, so its relative error is below 2^10 * 2^-24 = 6e-5 of the
    terms' magnitudes; eight local steps add up to 5e-4. TF32 would miss this by an order of magnitude.
    """
    cpu_model, gpu_model = build_model(spec, 1), build_model(spec, 1)
    on_cpu = train_round(cpu_model, examples(), training, round=2, seed=5, device=torch.device("cpu")).update
    on_gpu = train_round(gpu_model, examples(), training, round=2, seed=5, device=cuda).update
    assert next(gpu_model.parameters()).device.type == "cuda"
    assert on_gpu.dtype == np.float32
    assert np.linalg.norm(on_gpu - on_cpu) <= 5e-4 * np.linalg.norm(on_cpu)
    np.testing.assert_array_equal(model_vector(gpu_model), model_vector(build_model(spec, 1)))


def test_vectors_cross_to_the_gpu_and_back_bit_for_bit(cuda: torch.device) -> None:
    model = build_model(SPECS[1], 1).to(cuda)
    vector = np.random.default_rng(8).normal(size=len(model_vector(model))).astype(np.float32)
    load_vector(model, vector)
    np.testing.assert_array_equal(model_vector(model), vector)


def test_evaluation_agrees_with_the_cpu(cuda: torch.device) -> None:
    model = build_model(SPECS[0], 1)
    on_cpu = evaluate(model, examples(), torch.device("cpu"))
    on_gpu = evaluate(model, examples(), cuda)
    assert on_gpu.accuracy == on_cpu.accuracy
    # A logit sums 64 products whose magnitudes sum to less than 8: off by less than 64 * 8 * 2^-24 on each device. A
    # loss is a difference of two such numbers (the log of the sum of exponentials moves no more than a logit).
    assert on_gpu.loss == pytest.approx(on_cpu.loss, abs=2 * 2 * 64 * 8 * 2.0**-24)


def test_the_gpus_random_state_is_left_alone(cuda: torch.device) -> None:
    state = torch.cuda.get_rng_state(cuda)
    train_round(build_model(SPECS[1], 1), examples(), TRAININGS[1], round=1, seed=1, device=cuda)
    assert torch.equal(torch.cuda.get_rng_state(cuda), state)
