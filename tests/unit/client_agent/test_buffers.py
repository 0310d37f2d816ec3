"""Batch norm in a federation: statistics that stay at the site (FedBN), or are averaged with the update."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import (
    keep_buffers,
    layer_shapes,
    load_personal,
    load_vector,
    model_vector,
    normalisations,
    personal_vector,
)
from client_agent.learning.plugin import load_plugin
from client_agent.learning.trainer import LocalRound, epoch_rows, gradient_rows, loss_gradient, take, train_round
from client_agent.learning.update_noise import update_noise
from protocol.arithmetic.fixed_point import clip
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import ModelSpec, RuleName, RuleSpec, Study, TrainingSpec
from protocol.messages.model import Buffers
from protocol.shared_model import apply_aggregate, first_model
from tests.kit.studies import study_of

CPU = torch.device("cpu")
SGD = TrainingSpec(update="local_sgd", batch_size=6, local_learning_rate=0.1, server_learning_rate=0.25)
FEDAVG = RuleSpec(name=RuleName.FEDAVG)
STATISTICS = 4 * 4
"""Mean and variance of both layers, four channels each."""
PLUGIN = Path(__file__).with_name("small_resnet.py")


def small_resnet(buffers: Buffers | None) -> nn.Module:
    torch.manual_seed(1)
    made = load_plugin(PLUGIN).module.model()
    assert isinstance(made, nn.Module)
    keep_buffers(made, buffers)
    return made


def images(site: int, rows: int = 12) -> Examples:
    random = np.random.default_rng(site)
    y = random.integers(0, 2, rows)
    return Examples((random.normal(size=(rows, 1, 6, 6)) * (1 + site) + y[:, None, None, None]).astype(np.float32), y)


def trained(model: nn.Module, site: int, rows: int = 12) -> LocalRound:
    return train_round(model, images(site, rows), SGD, round=1, seed=site, device=CPU)


def moved_by(model: nn.Module, site: int) -> list[np.ndarray]:
    """Means and variances after the same steps, by torch's own hand."""
    own = small_resnet(None)
    own.load_state_dict(model.state_dict())
    optimiser = torch.optim.SGD(own.parameters(), lr=SGD.local_learning_rate)
    for rows in epoch_rows(12, SGD, 1, site):
        batch = take(images(site), rows, CPU)
        optimiser.zero_grad()
        nn.functional.cross_entropy(own.train()(batch.X), batch.y).backward()
        optimiser.step()
    return [
        getattr(layer, name).numpy() for _, layer in normalisations(own) for name in ("running_mean", "running_var")
    ]


def test_averaged_statistics_are_the_average_whatever_the_servers_rate() -> None:
    model = small_resnet(Buffers.SHARED)
    start = model_vector(model)
    updates = [trained(model, site).update for site in (1, 2)]
    np.testing.assert_array_equal(model_vector(model), start)
    after = apply_aggregate(start, np.mean(updates, axis=0, dtype=np.float32), FEDAVG, SGD.server_learning_rate)
    expected = np.mean([np.concatenate(moved_by(model, site)) for site in (1, 2)], axis=0)
    np.testing.assert_allclose(after[-STATISTICS:], expected, rtol=2e-5, atol=1e-6)
    assert layer_shapes(model)[-1].name == "second_norm.running_var"
    assert not loss_gradient(model, images(3), CPU)[-STATISTICS:].any()


def test_a_clipped_update_leaves_statistics_between_old_and_new() -> None:
    model = small_resnet(Buffers.SHARED)
    start, update = model_vector(model), trained(model, 3).update
    values, was_clipped = clip(update, float(np.linalg.norm(update)) / 4)
    assert was_clipped
    whole = apply_aggregate(start, update, FEDAVG, SGD.server_learning_rate)[-STATISTICS:]
    part = apply_aggregate(start, values.astype(np.float32), FEDAVG, SGD.server_learning_rate)[-STATISTICS:]
    np.testing.assert_allclose(part, start[-STATISTICS:] + (whole - start[-STATISTICS:]) / 4, rtol=1e-4, atol=1e-5)


def test_fedbn_keeps_the_whole_layer_at_the_site() -> None:
    model = small_resnet(Buffers.LOCAL)
    assert [layer.name for layer in layer_shapes(model)] == [
        "first.weight",
        "second.weight",
        "head.weight",
        "head.bias",
    ]
    own = personal_vector(model)
    assert len(own) == 2 * (4 + 4) + STATISTICS + 2  # weights and biases, statistics, two counters
    done = trained(model, 1)
    assert len(done.update) == len(model_vector(model))
    assert done.personal[-1] == 2  # batches seen
    assert not np.isclose(done.personal[:-2], own[:-2]).all()
    np.testing.assert_array_equal(personal_vector(model), own)
    load_personal(model, done.personal)
    np.testing.assert_array_equal(personal_vector(model), done.personal)


@pytest.mark.parametrize("buffers", list(Buffers))
def test_an_example_that_is_left_over_goes_into_the_batch_before(buffers: Buffers) -> None:
    """Under both kinds of update, whose other batches stay the same."""
    for rows, sizes in ((12, [6, 6]), (13, [6, 7]), (14, [6, 6, 2])):
        of = epoch_rows(rows, SGD, 1, 1, least=2)
        assert [len(one) for one in of] == sizes
        np.testing.assert_array_equal(np.concatenate(of), np.concatenate(epoch_rows(rows, SGD, 1, 1)))
        assert trained(small_resnet(buffers), 1, rows).update.any()
    gradient = SGD.model_copy(update={"update": "gradient", "batches": "cycled"})
    sizes = [len(gradient_rows(13, gradient, number, 1, least=2)) for number in (1, 2, 3)]
    assert sizes == [6, 7, 6]
    assert [len(gradient_rows(13, gradient, number, 1)) for number in (1, 2, 3)] == [6, 6, 1]
    for number in (1, 2, 3):
        done = train_round(small_resnet(buffers), images(1, 13), gradient, round=number, seed=1, device=CPU)
        assert done.update.any()


def test_a_site_with_a_single_example_is_refused_before_round_1() -> None:
    with pytest.raises(ConfigurationError, match="this site has 1 training example in batches of 6: take more of"):
        trained(small_resnet(Buffers.LOCAL), 1, rows=1)
    single = SGD.model_copy(update={"batch_size": 1})
    with pytest.raises(ConfigurationError, match="this site has 12 training examples in batches of 1: take more"):
        train_round(small_resnet(Buffers.SHARED), images(1), single, round=1, seed=1, device=CPU)


def test_noise_is_not_estimated_where_examples_are_mixed() -> None:
    with pytest.raises(UnusableUpdate, match="batch norm mixes the examples of a batch: take GroupNorm"):
        update_noise(small_resnet(Buffers.LOCAL), images(1), SGD, round=1, seed=1, device=CPU, clip_norm=1.0)


class Restless(nn.Module):
    """Keeps something of its own between batches."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(36, 2), torch.nn.Buffer(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        logits: torch.Tensor = self.linear(x.flatten(1))
        return logits


def test_other_buffers_are_constants() -> None:
    model = Restless()
    with pytest.raises(UnusableUpdate, match=r"seen\).*buffers = 'local'"):
        layer_shapes(model)
    keep_buffers(model, Buffers.SHARED)
    assert [layer.name for layer in layer_shapes(model)] == ["linear.weight", "linear.bias"]
    with pytest.raises(UnusableUpdate, match=r"training changes buffers \['seen'\]"):
        trained(model, 1)


def study(buffers: Buffers, rule: RuleSpec = FEDAVG) -> Study:
    layers = layer_shapes(small_resnet(buffers))
    model = ModelSpec(kind="plugin", inputs=(1, 6, 6), classes=2, buffers=buffers, layers=layers)
    return study_of(model, rule=rule, training=SGD)


def test_an_adaptive_step_is_no_average() -> None:
    adam = RuleSpec(name=RuleName.FEDADAM)
    with pytest.raises(ValueError, match=r"buffers = 'local', or a rule that averages"):
        study(Buffers.SHARED, adam)
    assert study(Buffers.LOCAL, adam).model.buffers is Buffers.LOCAL


def test_averaged_variances_begin_at_one() -> None:
    of = study(Buffers.SHARED)
    model = small_resnet(Buffers.SHARED)
    load_vector(model, first_model(of))
    for _, layer in normalisations(model):
        assert layer.get_buffer("running_var").tolist() == [1.0] * 4
        assert layer.get_buffer("running_mean").tolist() == [0.0] * 4
