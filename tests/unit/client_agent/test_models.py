"""Built-in models, flat vectors, devices, seeds, and the facts about data that rules need."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from client_agent.learning.data import Examples, LocalData, save_folder
from client_agent.learning.flat_vector import layer_shapes, layer_sizes, load_vector, model_vector, pick_device
from client_agent.learning.models import build_model, dimension, model_spec, private_state, require_layers
from client_agent.learning.torch_learner import TorchLearner
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import LayerShape, ModelSpec, RuleName, RuleSpec
from protocol.shared_model import initial_state
from tests.kit.studies import study_of

# --- models -----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("spec", "layers"),
    [
        (
            model_spec("mlp", (6,), (5, 4), 3, activation="tanh", dropout=0.2),
            "Flatten Dropout Linear Tanh Dropout Linear Tanh Dropout Linear",
        ),
        (
            model_spec("cnn", (1, 4, 4), (2, 3), 2, activation="tanh", dropout=0.5),
            "Conv2d Tanh Flatten Dropout Linear Tanh Dropout Linear",
        ),
        (model_spec("linear", (6,), (), 3, dropout=0.2), "Flatten Dropout Linear"),
    ],
)
def test_activation_and_dropout_of_every_kind(spec: ModelSpec, layers: str) -> None:
    found = list(build_model(spec, 1).children())
    assert " ".join(type(layer).__name__ for layer in found) == layers
    assert {layer.p for layer in found if isinstance(layer, nn.Dropout)} == {spec.dropout}


def test_dropout_and_activation_leave_the_initial_values_alone() -> None:
    plain = model_vector(build_model(model_spec("mlp", (6,), (5,), 3), 7))
    changed = model_vector(build_model(model_spec("mlp", (6,), (5,), 3, activation="tanh", dropout=0.5), 7))
    np.testing.assert_array_equal(plain, changed)


# --- update -----------------------------------------------------------------------------------------------------------


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


def test_layers_come_in_the_models_order() -> None:
    layers = layer_shapes(small())
    assert layers == (
        LayerShape(name="0.weight", shape=(3, 2)),
        LayerShape(name="0.bias", shape=(3,)),
        LayerShape(name="2.weight", shape=(1, 3)),
        LayerShape(name="2.bias", shape=(1,)),
    )
    assert layer_sizes(layers) == (("0.weight", 6), ("0.bias", 3), ("2.weight", 3), ("2.bias", 1))
    assert layer_sizes((LayerShape(name="scalar", shape=()),)) == (("scalar", 1),)


def test_a_vector_goes_in_and_comes_out_bit_for_bit() -> None:
    model = small()
    vector = np.linspace(-1, 1, 13, dtype=np.float32)
    load_vector(model, vector)
    np.testing.assert_array_equal(model_vector(model), vector)
    assert model.get_parameter("0.weight")[1, 0].item() == vector[2]
    vector[0] = 7
    assert model_vector(model)[0] == -1


@pytest.mark.parametrize("vector", [np.zeros(12, np.float32), np.zeros(13, np.float64), np.zeros((13, 1), np.float32)])
def test_another_vector_is_refused(vector: np.ndarray) -> None:
    with pytest.raises(UnusableUpdate, match=r"float32\[13\]"):
        load_vector(small(), vector)


def test_an_empty_model_is_refused() -> None:
    with pytest.raises(UnusableUpdate, match="no parameters"):
        layer_shapes(nn.ReLU())


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigurationError, match="0 CUDA devices"):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigurationError, match="2 CUDA devices"):
        pick_device("cuda:2")


@pytest.mark.parametrize("wanted", ["gpu", "cuda:", "cuda:x", "cpu:0", "CUDA", ""])
def test_unknown_devices_are_refused(wanted: str) -> None:
    with pytest.raises(ConfigurationError, match="allowed are auto, cpu, cuda and cuda:n"):
        pick_device(wanted)


# --- learner ----------------------------------------------------------------------------------------------------------

MODEL = model_spec("linear", (3,), (), 3)
RNG = np.random.default_rng(5)


def examples(labels: list[int]) -> Examples:
    return Examples(RNG.normal(size=(len(labels), 3)).astype(np.float32), np.array(labels, dtype=np.int64))


TRAIN, VALIDATION = examples([0, 0, 1, 0]), examples([1, 0])


def learner(folder: Path, rule: RuleName, validation: Examples | None = VALIDATION) -> TorchLearner:
    save_folder(folder, LocalData(TRAIN, examples([]), validation))
    return TorchLearner(
        study_of(MODEL).model_copy(update={"rule": RuleSpec(name=rule)}), folder, None, "cpu", 1, folder
    )


def test_classes_that_a_site_lacks_are_counted_as_none(tmp_path: Path) -> None:
    site = learner(tmp_path, RuleName.WFEDAVG)
    assert site.class_counts() == (3, 1, 0)
    assert site.sample_count() == 4


def test_the_probe_is_the_gradient_on_the_validation_examples(tmp_path: Path) -> None:
    """Softmax regression at the model 0: the mean of (1/3 - onehot) x over the examples, and of (1/3 - onehot)."""
    probe = learner(tmp_path, RuleName.INFLUENCE).probe(np.zeros(12, dtype=np.float32))
    wrong = 1 / 3 - np.eye(3)[VALIDATION.y]
    expected = np.concatenate([(wrong.T @ VALIDATION.X / 2).ravel(), wrong.mean(axis=0)])
    # a softmax of three equal logits, its difference, two products, a sum, a mean: eight float32 roundings of numbers
    # that do not reach the largest feature
    largest = float(np.abs(VALIDATION.X).max())
    np.testing.assert_allclose(probe, expected, rtol=0, atol=8 * 2.0**-24 * max(1.0, largest))


@pytest.mark.parametrize("validation", [None, examples([])])
def test_without_validation_examples_the_file_is_named(tmp_path: Path, validation: Examples | None) -> None:
    with pytest.raises(ConfigurationError, match=r"'influence' measures .* into validation\.npz beside train\.npz"):
        learner(tmp_path, RuleName.INFLUENCE, validation).probe(np.zeros(12, dtype=np.float32))


def test_a_server_optimiser_moves_its_moments_with_the_model(tmp_path: Path) -> None:
    site = learner(tmp_path, RuleName.FEDADAM)
    before = initial_state(np.zeros(12, dtype=np.float32), RuleSpec(name=RuleName.FEDADAM))
    after = site.apply(before, np.ones(12, dtype=np.float32))
    assert after.shape == (36,)
    assert (after[:12] < 0).all()
    assert (after[12:24] > 0).all()


def test_without_a_finish_table_there_is_no_finish(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"created without \[finish\]"):
        learner(tmp_path, RuleName.FEDAVG).finish(np.zeros(12, dtype=np.float32))


# --- seeding ----------------------------------------------------------------------------------------------------------

SPEC = model_spec("linear", (5,), (), 2)


def test_a_model_is_drawn_while_nobody_else_draws() -> None:
    """Another thread is in the middle of its own draws: the model waits for it, and is the same as ever."""
    expected = model_vector(build_model(SPEC, 3))
    drawn: list[torch.nn.Module] = []
    made = threading.Thread(target=lambda: drawn.append(build_model(SPEC, 3)))
    with private_state():
        torch.manual_seed(99)
        made.start()
        made.join(0.2)
        assert made.is_alive()
        first = torch.rand(3)
    made.join(10)
    assert not made.is_alive()
    assert (model_vector(drawn[0]) == expected).all()
    assert torch.equal(first, torch.rand(3, generator=torch.Generator().manual_seed(99)))


def test_the_state_is_as_it_was_and_blocks_may_nest() -> None:
    before = torch.get_rng_state()
    with private_state(), private_state():
        torch.rand(7)
    assert torch.equal(torch.get_rng_state(), before)
