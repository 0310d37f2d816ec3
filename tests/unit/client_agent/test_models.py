"""Built-in models: sizes, seeds, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from client_agent.learning.flat_vector import model_vector
from client_agent.learning.models import build_model, dimension, model_spec, require_layers
from protocol.errors import ConfigurationError
from protocol.messages.control import LayerShape, ModelSpec


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        (model_spec("linear", (30,), (), 2), 30 * 2 + 2),
        (model_spec("linear", (1, 8, 8), (), 10), 64 * 10 + 10),
        (model_spec("mlp", (64,), (144,), 10), 64 * 144 + 144 + 144 * 10 + 10),
        (model_spec("mlp", (6,), (5, 4), 3), 6 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3),
        (
            model_spec("cnn", (1, 28, 28), (32, 64, 128, 128), 10),
            (9 * 32 + 32) + (9 * 32 * 64 + 64) + (9 * 64 * 128 + 128) + (2048 * 128 + 128) + (128 * 10 + 10),
        ),
    ],
)
def test_size_and_output(spec: ModelSpec, parameters: int) -> None:
    model = build_model(spec, seed=1)
    assert dimension(spec) == parameters == sum(p.numel() for p in model.parameters())
    assert model(torch.zeros(3, *spec.inputs)).shape == (3, spec.classes)


def test_initial_values_depend_on_the_seed_alone() -> None:
    spec = model_spec("mlp", (6,), (5,), 3)
    state = torch.get_rng_state()
    first = model_vector(build_model(spec, 7))
    torch.manual_seed(99)
    np.testing.assert_array_equal(first, model_vector(build_model(spec, 7)))
    assert not np.array_equal(first, model_vector(build_model(spec, 8)))
    torch.set_rng_state(state)
    build_model(spec, 9)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("kind", "inputs", "hidden", "classes", "said"),
    [
        ("linear", (), (), 2, "inputs"),
        ("linear", (4,), (3,), 2, "takes no hidden"),
        ("mlp", (4,), (0,), 2, "sizes start at 1"),
        ("mlp", (4,), (3,), 0, "classes=0"),
        ("cnn", (28, 28), (8, 8), 10, "channels, height, width"),
        ("cnn", (1, 28, 28), (8,), 10, "at least two hidden"),
    ],
)
def test_sizes_that_make_no_model_are_refused(
    kind: str, inputs: tuple[int, ...], hidden: tuple[int, ...], classes: int, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        model_spec(kind, inputs, hidden, classes)  # type: ignore[arg-type]


def test_layers_other_than_the_pinned_ones_are_refused() -> None:
    spec = model_spec("mlp", (6,), (5,), 3)
    renamed = (LayerShape(name="first", shape=(5, 6)), *spec.layers[1:])
    with pytest.raises(ConfigurationError, match=r"'1\.weight' \[5, 6\] stands where the study has 'first'"):
        build_model(spec.model_copy(update={"layers": renamed}), 0)
    with pytest.raises(ConfigurationError, match="4 layers, the study has 3"):
        build_model(spec.model_copy(update={"layers": spec.layers[:3]}), 0)
    require_layers(build_model(spec, 0), spec)


def test_a_plugin_is_not_built_in() -> None:
    spec = ModelSpec(kind="plugin", layers=(LayerShape(name="w", shape=(2,)),))
    with pytest.raises(ConfigurationError, match="plug-in"):
        build_model(spec, 0)


def test_activation_and_dropout_of_every_kind() -> None:
    mlp = build_model(model_spec("mlp", (6,), (5, 4), 3, activation="tanh", dropout=0.2), 1)
    assert [type(layer) for layer in mlp.children()] == [
        nn.Flatten,
        nn.Dropout,
        nn.Linear,
        nn.Tanh,
        nn.Dropout,
        nn.Linear,
        nn.Tanh,
        nn.Dropout,
        nn.Linear,
    ]
    cnn = build_model(model_spec("cnn", (1, 4, 4), (2, 3), 2, activation="tanh", dropout=0.5), 1)
    assert [type(layer) for layer in cnn.children()] == [
        nn.Conv2d,
        nn.Tanh,
        nn.Flatten,
        nn.Dropout,
        nn.Linear,
        nn.Tanh,
        nn.Dropout,
        nn.Linear,
    ]
    assert all(layer.p == 0.2 for layer in mlp.children() if isinstance(layer, nn.Dropout))
    linear = build_model(model_spec("linear", (6,), (), 3, dropout=0.2), 1)
    assert [type(layer) for layer in linear.children()] == [nn.Flatten, nn.Dropout, nn.Linear]


def test_dropout_and_activation_leave_the_initial_values_alone() -> None:
    plain = model_vector(build_model(model_spec("mlp", (6,), (5,), 3), 7))
    changed = model_vector(build_model(model_spec("mlp", (6,), (5,), 3, activation="tanh", dropout=0.5), 7))
    np.testing.assert_array_equal(plain, changed)
