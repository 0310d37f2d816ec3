"""Personal layers train with the model, stay out of everything that is shared, and survive a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from client_agent.learning.data import Examples, LocalData, save_folder
from client_agent.learning.flat_vector import (
    Affine,
    Personalised,
    PersonalLayer,
    layer_shapes,
    load_personal,
    load_vector,
    model_vector,
    personal_parameters,
    personal_vector,
    shared_parameters,
)
from client_agent.learning.learner import PersonalState
from client_agent.learning.models import build_model, dimension, model_spec
from client_agent.learning.scores import value_of
from client_agent.learning.torch_learner import TorchLearner
from client_agent.learning.trainer import train_round
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import ModelSpec, Study, TrainingSpec
from protocol.shared_model import first_model
from tests.kit.present import present
from tests.kit.studies import study_of

CPU = torch.device("cpu")
SPEC = model_spec("mlp", (4,), (5,), 3, activation="tanh", personal=("input", "target"))
SGD = TrainingSpec(update="local_sgd", batch_size=4, local_learning_rate=0.5)
DATA = Examples(
    np.random.default_rng(5).normal(size=(10, 4)).astype(np.float32),
    np.random.default_rng(6).integers(0, 3, size=10),
)
PLUGIN = """
import numpy as np
import torch
from client_agent.learning.flat_vector import Affine

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.unused, self.linear = Affine((4,)), torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x)

def model():
    return Model()

def data(path):
    part = np.load(path / "train.npz")
    return (part["X"], part["y"]), (part["X"], part["y"])

def loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch.X), batch.y)
"""


def study(spec: ModelSpec = SPEC, training: TrainingSpec = SGD) -> Study:
    return study_of(spec, training=training, seed=1)


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    save_folder(folder, LocalData(DATA, DATA))
    return folder


def learner(data_folder: Path, state: Path, **changes: Any) -> TorchLearner:
    return TorchLearner(study(**changes), data_folder, None, "cpu", 7, state)


def test_affine_begins_as_the_identity_and_shifts_before_it_scales() -> None:
    layer = Affine((2,))
    x = torch.tensor([[1.0, 2.0]])
    assert torch.equal(layer(x), x)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([1.0, -1.0]))
        layer.weight.copy_(torch.tensor([3.0, 0.5]))
    assert layer(x).tolist() == [[6.0, 0.5]]


def test_shared_layers_are_those_of_the_network_without_personal_ones() -> None:
    plain = model_spec("mlp", (4,), (5,), 3, activation="tanh")
    assert [layer.shape for layer in SPEC.layers] == [layer.shape for layer in plain.layers]
    assert dimension(SPEC) == dimension(plain)
    model = build_model(SPEC, 1)
    np.testing.assert_array_equal(model_vector(model), model_vector(build_model(plain, 1)))
    assert [name for name, _ in personal_parameters(model)] == [
        "input.bias",
        "input.weight",
        "target.bias",
        "target.weight",
    ]
    np.testing.assert_array_equal(personal_vector(model), [0] * 4 + [1] * 4 + [0] * 3 + [1] * 3)


def test_only_the_named_personal_layers_are_there() -> None:
    places: list[tuple[Literal["input", "target"], int]] = [("input", 8), ("target", 6)]
    for place, size in places:
        model = build_model(model_spec("linear", (4,), (), 3, personal=(place,)), 1)
        assert len(personal_vector(model)) == size
    with pytest.raises(ConfigurationError, match="once"):
        model_spec("linear", (4,), (), 3, personal=("input", "input"))


def test_everything_below_a_personal_layer_is_personal() -> None:
    class Adapter(PersonalLayer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

    model = nn.Sequential(Adapter(), nn.Linear(4, 3))
    assert [layer.name for layer in layer_shapes(model)] == ["1.weight", "1.bias"]
    assert [name for name, _ in personal_parameters(model)] == ["0.inner.weight", "0.inner.bias"]
    assert [name for name, _ in shared_parameters(model)] == ["1.weight", "1.bias"]


def test_a_personal_vector_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UnusableUpdate, match=r"personal layers, which takes float32\[14\]"):
        load_personal(build_model(SPEC, 1), np.zeros(13, np.float32))


def test_a_step_of_the_personal_layers_is_the_gradients() -> None:
    spec = model_spec("linear", (4,), (), 3, personal=("input",))
    model = build_model(spec, 1)
    shared = model_vector(model).astype(np.float64)
    training = TrainingSpec(update="local_sgd", batch_size=10, local_learning_rate=0.5, l2=0.3)
    done = train_round(model, DATA, training, round=1, seed=3, device=CPU)
    bias, weight = (torch.full((4,), v, dtype=torch.float64, requires_grad=True) for v in (0.0, 1.0))
    x = torch.from_numpy(DATA.X.astype(np.float64))
    logits = (x + bias) * weight @ torch.from_numpy(shared[:12].reshape(3, 4)).T + torch.from_numpy(shared[12:])
    nn.functional.cross_entropy(logits, torch.from_numpy(DATA.y)).backward()
    expected = np.concatenate([-0.5 * present(bias.grad).numpy(), 1 - 0.5 * present(weight.grad).numpy()])
    # l2 is not added to personal layers; float32 with fewer than 64 additions of terms below 4
    np.testing.assert_allclose(done.personal, expected, rtol=0, atol=64 * 4 * 2.0**-24)
    assert np.abs(expected - ([0] * 4 + [1] * 4)).max() > 0.01
    assert len(done.update) == dimension(spec) == 15


def test_the_model_comes_back_with_its_personal_layers() -> None:
    model = build_model(SPEC, 1)
    own = np.linspace(0.5, 2, 14, dtype=np.float32)
    load_personal(model, own)
    before = model_vector(model)
    done = train_round(model, DATA, SGD, round=1, seed=3, device=CPU)
    np.testing.assert_array_equal(personal_vector(model), own)
    np.testing.assert_array_equal(model_vector(model), before)
    assert not np.array_equal(done.personal, own)


def test_a_restart_in_the_middle_of_a_round_gives_the_same_update(tmp_path: Path, data_folder: Path) -> None:
    first = learner(data_folder, tmp_path / "state")
    model = first_model(study())
    first.update(model, 1)
    second_round = first.update(model, 2)
    kept = PersonalState(tmp_path / "state").latest()
    again = learner(data_folder, tmp_path / "state")
    np.testing.assert_array_equal(again.update(model, 2), second_round)
    np.testing.assert_array_equal(PersonalState(tmp_path / "state").latest(), kept)
    # not what a site that has forgotten its layers would send
    assert not np.array_equal(learner(data_folder, tmp_path / "fresh").update(model, 2), second_round)


def test_preparing_leaves_no_trace(tmp_path: Path, data_folder: Path) -> None:
    prepared = learner(data_folder, tmp_path / "state")
    prepared.prepare()
    assert PersonalState(tmp_path / "state").latest() is None


def test_accuracy_is_that_of_the_site_with_its_own_layers(tmp_path: Path, data_folder: Path) -> None:
    here = learner(data_folder, tmp_path / "state")
    vector = first_model(study())
    layers = np.array([0] * 4 + [1] * 4 + [0, 0, 100] + [1] * 3, np.float32)
    PersonalState(tmp_path / "state").save(1, layers, "ab" * 32)
    assert value_of(here.scores(vector), "accuracy") == np.mean(DATA.y == 2)


def test_what_a_site_sends_does_not_depend_on_layers_that_the_loss_does_not_reach(
    tmp_path: Path, data_folder: Path
) -> None:
    path = tmp_path / "plugin.py"
    path.write_text(PLUGIN)
    shared = nn.Linear(4, 3)
    spec = ModelSpec(
        kind="plugin",
        inputs=(4,),
        classes=3,
        layers=tuple(layer.model_copy(update={"name": f"linear.{layer.name}"}) for layer in layer_shapes(shared)),
    )
    sent = []
    for number, scale in enumerate((1.0, 1000.0)):
        state = PersonalState(tmp_path / str(number))
        state.save(1, np.full(8, scale, np.float32), "ab" * 32)
        site = TorchLearner(study(spec), data_folder, path, "cpu", 7, tmp_path / str(number))
        update = site.update(model_vector(shared), 2)
        assert update.shape == (dimension(spec),) == (15,)
        np.testing.assert_array_equal(state.latest(), np.full(8, scale, np.float32))
        sent.append(update.tobytes())
    assert sent[0] == sent[1]


def test_class_weights_are_refused_with_a_plugin(tmp_path: Path, data_folder: Path) -> None:
    path = tmp_path / "plugin.py"
    path.write_text(PLUGIN)
    spec = ModelSpec(kind="plugin", inputs=(4,), classes=3, layers=layer_shapes(nn.Linear(4, 3)))
    weighted = TrainingSpec(class_weights="inverse_frequency")
    with pytest.raises(ConfigurationError, match=r"plug-in's loss\(\) weighs classes itself"):
        TorchLearner(study(spec, weighted), data_folder, path, "cpu", 7, tmp_path)


def test_personal_state_keeps_the_last_rounds(tmp_path: Path) -> None:
    state = PersonalState(tmp_path / "study")
    assert state.latest() is None
    for number in (1, 2, 4, 7, 10):
        state.save(number, np.full(3, number, np.float32), "ab" * 32)
    assert [path.name for path in sorted(tmp_path.glob("study/*"))] == [
        f"personal-{number:06d}.safetensors" for number in (4, 7, 10)
    ]
    found = [state.latest(), state.before(10), state.before(8)]
    assert [None if one is None else one[0] for one in found] == [10, 7, 7]
    assert state.before(4) is None


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "personal-000003.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(ConfigurationError, match=r"personal-000003\.safetensors cannot be read"):
        PersonalState(tmp_path).latest()


def test_the_wrapper_takes_any_network() -> None:
    model = Personalised(nn.Linear(2, 2), input=None, target=Affine((2,)))
    load_vector(model, np.array([1, 0, 0, 1, 0, 0], np.float32))
    assert model(torch.tensor([[1.0, 2.0]])).tolist() == [[1.0, 2.0]]
