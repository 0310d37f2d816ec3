"""All sites in one call give what every site by itself gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import load_personal, load_vector, model_vector, personal_vector
from client_agent.learning.losses import training_loss
from client_agent.learning.models import build_model, model_spec
from client_agent.learning.trainer import train_round
from harness.engine.history import RunHistory
from harness.engine.loop import run_rounds
from harness.engine.run_state import Attendance, Conditions
from harness.engine.training import ON_CPU, Batched, Computing, TrainedSites, batchable, repeated
from harness.simulate.workers import computing_of
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import ModelSpec, RuleName, TaskKind, TaskSpec, TrainingSpec
from protocol.policy.site_policy import SitePolicy
from tests.kit.small_runs import CPU, MODEL, NAMES, small_sites, small_study

# --- batched ----------------------------------------------------------------------------------------------------------

SIZES = (3, 10, 17)
RANDOM = np.random.default_rng(8)
SITES = [Examples(RANDOM.normal(size=(size, 4)).astype(np.float32), RANDOM.integers(0, 3, size=size)) for size in SIZES]
SEEDS = [11, 12, 13]
# At most 10 steps, each a sum of fewer than 64 products below 4 in another order of additions, and each later gradient
# a function of the earlier ones with slope below 4.
BOUND = 10 * 64 * 4 * 4 * 2.0**-24
PLAIN = TrainingSpec(update="local_sgd", batch_size=4, epochs=2, local_learning_rate=0.1)
EVERYTHING = PLAIN.model_copy(
    update={
        "momentum": 0.5,
        "l2": 0.01,
        "learning_rate_decay": 0.5,
        "decay_every_rounds": 1,
        "class_weights": "inverse_frequency",
    }
)


def one_after_the_other(
    model: nn.Module,
    sites: list[Examples],
    training: TrainingSpec,
    models: np.ndarray,
    personal: np.ndarray,
    number: int,
) -> TrainedSites:
    """As the sites' agents train."""
    done = []
    for row, (site, seed) in enumerate(zip(sites, SEEDS, strict=True)):
        load_vector(model, models[row])
        load_personal(model, personal[row])
        done.append(train_round(model, site, training, round=number, seed=seed, device=CPU))
    return TrainedSites(np.stack([one.update for one in done]), np.stack([one.personal for one in done]))


@pytest.mark.parametrize("training", [PLAIN, EVERYTHING])
@pytest.mark.parametrize(
    "spec",
    [
        model_spec("linear", (4,), (), 3),
        model_spec("mlp", (4,), (6, 5), 3, activation="tanh", personal=("input", "target")),
        model_spec("cnn", (1, 2, 2), (2, 3), 3, personal=("input",)),
    ],
)
def test_one_call_is_every_site_by_itself(spec: ModelSpec, training: TrainingSpec) -> None:
    sites = [Examples(site.X.reshape(-1, *spec.inputs), site.y) for site in SITES]
    model = build_model(spec, 1)
    models = np.stack([model_vector(model) + np.float32(0.1 * k) for k in range(3)])
    personal = repeated(personal_vector(model), 3) + np.float32(0.05)
    one_by_one = one_after_the_other(model, sites, training, models, personal, 2)
    together = Batched(build_model(spec, 1), sites, SEEDS, training, CPU).train(models, personal, 2)
    np.testing.assert_allclose(together.updates, one_by_one.updates, rtol=0, atol=BOUND)
    np.testing.assert_allclose(together.personal, one_by_one.personal, rtol=0, atol=BOUND)
    assert np.abs(one_by_one.updates).max(axis=1).min() > 100 * BOUND


def test_a_site_without_further_batches_stands_still() -> None:
    spec = model_spec("linear", (4,), (), 3)
    model = build_model(spec, 1)
    models = repeated(model_vector(model), 3)
    nothing = np.zeros((3, 0), np.float32)
    training = EVERYTHING.model_copy(update={"momentum": 0.99})
    alone = Batched(model, SITES[:1], SEEDS[:1], training, CPU).train(models[:1], nothing[:1], 1)
    beside = Batched(model, SITES, SEEDS, training, CPU).train(models, nothing, 1)
    # the same steps of one site, computed as one of three: only the order of additions may differ
    np.testing.assert_allclose(beside.updates[0], alone.updates[0], rtol=0, atol=2 * 64 * 4 * 2.0**-24)


def test_dropout_draws_from_the_seed_and_differs_between_sites() -> None:
    spec = model_spec("mlp", (4,), (16,), 3, dropout=0.5)
    model = build_model(spec, 1)
    sites = [SITES[1], SITES[1]]
    models, nothing = repeated(model_vector(model), 2), np.zeros((2, 0), np.float32)
    trained = [Batched(model, sites, [5, 5], PLAIN, CPU).train(models, nothing, r).updates for r in (1, 1, 2)]
    np.testing.assert_array_equal(trained[0], trained[1])
    assert not np.array_equal(trained[0], trained[2])
    assert not np.array_equal(trained[0][0], trained[0][1])


def test_gradients_of_one_batch_are_not_batched() -> None:
    model = build_model(model_spec("linear", (4,), (), 3), 1)
    with pytest.raises(ConfigurationError, match="takes local SGD, found update='gradient'"):
        Batched(model, SITES, SEEDS, TrainingSpec(), CPU)


@pytest.mark.gpu
def test_one_call_on_a_gpu_is_every_site_by_itself() -> None:
    if not torch.cuda.is_available():
        pytest.skip("NOT TESTED: all sites' steps in one call on a GPU, because no CUDA device is here")
    spec = model_spec("mlp", (4,), (6, 5), 3, activation="tanh", personal=("input", "target"))
    models = repeated(model_vector(build_model(spec, 1)), 3)
    personal = repeated(personal_vector(build_model(spec, 1)), 3)
    one_by_one = one_after_the_other(build_model(spec, 1), SITES, EVERYTHING, models, personal, 1)
    device = torch.device("cuda")
    together = Batched(build_model(spec, 1), SITES, SEEDS, EVERYTHING, device).train(models, personal, 1)
    # tanh and exponentials of another library are off by a few more units: counted as twice the additions
    np.testing.assert_allclose(together.updates, one_by_one.updates, rtol=0, atol=2 * BOUND)
    np.testing.assert_allclose(together.personal, one_by_one.personal, rtol=0, atol=2 * BOUND)


@pytest.mark.parametrize(
    ("kind", "y"),
    [
        (TaskKind.REGRESSION, RANDOM.normal(size=(30, 2))),
        (TaskKind.COUNTS, RANDOM.poisson(2.0, size=(30, 2))),
        (TaskKind.MULTI_LABEL, RANDOM.integers(0, 2, size=(30, 2))),
    ],
)
def test_losses_that_are_means_over_examples_are_batched(kind: TaskKind, y: np.ndarray) -> None:
    task = TaskSpec(kind=kind)
    sites = [Examples(site.X, y[: len(site)].astype(np.float32)) for site in SITES]
    model = build_model(model_spec("linear", (4,), (), 2), 1)
    models, nothing = repeated(model_vector(model), 3), np.zeros((3, 0), np.float32)
    together = Batched(model, sites, SEEDS, PLAIN, CPU, task).train(models, nothing, 1).updates
    for row, (site, seed) in enumerate(zip(sites, SEEDS, strict=True)):
        loss = training_loss(PLAIN, site.y, task)
        alone = train_round(model, site, PLAIN, round=1, seed=seed, device=CPU, loss=loss).update
        np.testing.assert_allclose(together[row], alone, rtol=0, atol=10 * BOUND)


def test_a_loss_that_compares_examples_is_computed_site_by_site() -> None:
    cox = TaskSpec(kind=TaskKind.SURVIVAL)
    assert not batchable(cox, None)
    model = build_model(model_spec("linear", (4,), (), 1), 1)
    with pytest.raises(ConfigurationError, match="takes a mean over examples, which cox is not"):
        Batched(model, SITES, SEEDS, PLAIN, CPU, cox)


# --- round training ---------------------------------------------------------------------------------------------------

BATCHED = Computing(CPU, batched=True)
LOCAL_SGD = TrainingSpec(update="local_sgd", batch_size=8, epochs=1, local_learning_rate=0.1, server_learning_rate=0.1)


def run(
    computing: Computing,
    rule: RuleName = RuleName.FEDAVG,
    model: ModelSpec = MODEL,
    training: TrainingSpec = LOCAL_SGD,
    scale: float = 1.0,
) -> RunHistory:
    away = Attendance(missed=frozenset({(2, "far")}))
    conditions = Conditions(policy=SitePolicy(least_isolation=0.0), attendance=away, computing=computing)
    study = small_study(rule, 2, model=model, training=training, clip_norm=16.0)
    given = small_sites((16, 20, 24, 28, 32), turn=0.3, scale=scale)
    return run_rounds(study, given, conditions=conditions)


@pytest.mark.parametrize("rule", [RuleName.FEDAVG, RuleName.WEIGHT_EROSION])
@pytest.mark.parametrize("model", [MODEL, model_spec("linear", (3,), (), 2, personal=("input",))])
def test_a_batched_run_is_the_run_one_by_one(rule: RuleName, model: ModelSpec) -> None:
    one_by_one, together = run(ON_CPU, rule, model), run(BATCHED, rule, model)
    # Two rounds of at most 4 steps, each a sum of fewer than 64 products below 4 in another order, carried on with a
    # slope below 4; the server's rate is .1.
    bound = 0.1 * 2 * 4 * 64 * 4 * 4 * 2.0**-24
    np.testing.assert_allclose(together.final_model, one_by_one.final_model, rtol=0, atol=bound)
    assert [record.took_part for record in together.rounds] == [NAMES[1:], ("near", "middle", "other")]
    start = one_by_one.rounds[0].model_norm
    assert abs(one_by_one.rounds[1].model_norm - start) > 100 * bound


def test_single_gradients_are_computed_one_by_one() -> None:
    training = TrainingSpec(batch_size=8, server_learning_rate=0.5)
    np.testing.assert_array_equal(
        run(BATCHED, training=training).final_model, run(ON_CPU, training=training).final_model
    )


def test_a_batched_update_that_is_no_number_is_refused_too() -> None:
    with pytest.raises(UnusableUpdate):
        run(BATCHED, scale=1e37)


def test_what_the_command_line_chooses() -> None:
    assert computing_of(None, "cpu") == ON_CPU
    assert (str(Computing(CPU, batched=True)), str(ON_CPU)) == ("cpu, batched", "cpu")
    with pytest.raises(ConfigurationError, match="allowed are auto, cpu, cuda"):
        computing_of(None, "tpu")
