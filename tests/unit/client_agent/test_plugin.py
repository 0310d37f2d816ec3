"""A site's plug-in: it trains like a built-in model, and every mistake in it is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from client_agent.learning.data import NO_NAMES, DataNames
from client_agent.learning.evaluation import evaluate
from client_agent.learning.flat_vector import layer_shapes, load_vector, model_vector
from client_agent.learning.models import completed
from client_agent.learning.plugin import Plugin, load_plugin
from client_agent.learning.trainer import train_round
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import LayerShape, ModelSpec, TrainingSpec
from protocol.messages.model import Buffers
from tests.kit.present import present

CPU = torch.device("cpu")
GOOD = """
import numpy as np
import torch

def model():
    return torch.nn.Linear(2, 2)

def data(path):
    X = np.full((3, 2), float(path.read_text()), np.float32)
    y = np.array([0, 1, 0])
    return (X, y), (X[:1], y[:1])

def loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch.X), batch.y)
"""
SPEC = ModelSpec(
    kind="plugin",
    inputs=(2,),
    classes=2,
    layers=(LayerShape(name="weight", shape=(2, 2)), LayerShape(name="bias", shape=(2,))),
)


def plugin_file(folder: Path, *replacements: tuple[str, str]) -> Path:
    text = GOOD
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path = folder / "plugin.py"
    path.write_text(text)
    (folder / "value").write_text("1.5")
    return path


def used(plugin: Plugin, folder: Path, spec: ModelSpec = SPEC) -> np.ndarray:
    """The update after all that a study does with a plug-in: model, data, names and loss."""
    model, data = plugin.model(spec, 0), plugin.data(folder / "value", spec)
    load_vector(model, model_vector(model))
    return train_round(model, data.train, TrainingSpec(), round=1, seed=1, device=CPU, loss=plugin.loss).update


def test_a_plugin_trains(tmp_path: Path) -> None:
    plugin = load_plugin(plugin_file(tmp_path))
    state = torch.get_rng_state()
    model = plugin.model(SPEC, 4)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(model_vector(model), model_vector(plugin.model(SPEC, 4)))
    assert layer_shapes(model) == SPEC.layers
    data = plugin.data(tmp_path / "value", SPEC)
    assert data.train.X[0, 0] == 1.5
    assert (len(data.train), len(data.test), data.validation, data.names) == (3, 1, None, NO_NAMES)
    update = used(plugin, tmp_path)
    assert (update.shape, np.count_nonzero(update)) == ((6,), 6)


def test_a_plugin_may_set_examples_apart_for_validation(tmp_path: Path) -> None:
    path = plugin_file(tmp_path, ("(X[:1], y[:1])", "(X[:1], y[:1]), (X[:2], y[:2])"))
    data = load_plugin(path).data(tmp_path / "value", SPEC)
    assert (len(data.train), len(data.test), len(present(data.validation))) == (3, 1, 2)


def names_function(returned: str) -> tuple[str, str]:
    return "def model()", f"def names(path):\n    return {returned}\n\ndef model()"


def test_names_are_optional_and_may_be_given_in_part(tmp_path: Path) -> None:
    plugin = load_plugin(plugin_file(tmp_path, names_function("None, ['no', path.read_text()]")))
    assert plugin.data(tmp_path / "value", SPEC).names == DataNames(classes=("no", "1.5"))


def test_files_that_are_no_plugin(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is missing"):
        load_plugin(tmp_path / "nothing.py")
    text = tmp_path / "plugin.txt"
    text.write_text(GOOD)
    with pytest.raises(ConfigurationError, match=r"must end in \.py"):
        load_plugin(text)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        *((f"def {name}(", f"def _{name}(", f": function '{name}' is missing") for name in ("model", "data", "loss")),
        ("import torch\n", "import torch\nimport no_such_module_anywhere\n", " does not load: ModuleNotFoundError"),
        ("def model()", "def model(", " does not load: SyntaxError"),
        ("return torch.nn.Linear(2, 2)", "raise KeyError('x')", r", line 6: model\(\) fails: KeyError: 'x'"),
        ("return torch.nn.Linear(2, 2)", "raise SystemExit(3)", r", line 6: model\(\) fails: SystemExit: 3"),
        ("torch.nn.Linear(2, 2)", "3", r": model\(\) gave int, expected a torch\.nn\.Module"),
        ("Linear(2, 2)", "Linear(2, 3)", r"'weight' \[3, 2\] stands where"),
        ("Linear(2, 2)", "BatchNorm1d(2)", "GroupNorm"),
        ("np.full(", "np.load(path / 'gone.npy') or (", r", line 9: data\(.*\) fails: NotADirectoryError"),
        ("return (X, y), (X[:1], y[:1])", "return X", r": data\(\) gave ndarray"),
        ("(X[:1], y[:1])", "X", r": the test part of data\(\) is no pair"),
        ("return (X, y),", "return (X, [0, 1, 0]),", r": the train part of data\(\) is no pair"),
        ("np.float32)", "np.float64)", r": train part of data\(\): X has type float64"),
        ("[0, 1, 0]", "[0, 1, 2]", r": train part of data\(\): y lies in 0\.\.2"),
        ("return (X, y), ", "return (X[:0], y[:0]), ", r": data\(\) gave no training example"),
        (*names_function("['a', 'b']"), r": names\(\) gave \['a', 'b'\], expected \(feature_names, class_names\)"),
        (*names_function("'ab', None"), "feature_names 'ab', expected a list of texts or None"),
        (*names_function("[], None"), "expected a list of texts or None"),
        (*names_function("None, [1, 2]"), r"class_names \[1, 2\], expected a list of texts"),
        (*names_function("['a', 'a'], None"), r": names\(\): feature_names: 'a' is there more than once"),
        ("torch.nn.functional.cross_entropy(model(batch.X), batch.y)", "1.0", r": loss\(\) gave float, expected a sca"),
        ("torch.nn.functional.cross_entropy(model(batch.X), batch.y)", "model(batch.X)", r"shape \[3, 2\], expected a"),
        ("model(batch.X)", "model(batch.X)[:, [5]]", ", line 14: the loss or its gradient fails: IndexError"),
        ("(model(batch.X)", "(batch.X", ": the loss or its gradient fails: RuntimeError: element 0"),
    ],
)
def test_whatever_is_wrong_with_a_plugin_is_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = plugin_file(tmp_path, (old, new))
    with pytest.raises((ConfigurationError, UnusableUpdate), match=said) as found:
        used(load_plugin(path), tmp_path)
    assert str(path) in found.value.detail or "stands where" in said
    assert "\n" not in found.value.detail


NETWORK = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        %s

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

"""


def network(folder: Path, changed: str) -> Plugin:
    """A plug-in whose network is two layers, of which ``changed`` changes something."""
    given = [
        ("def model()", NETWORK % changed + "def model()"),
        ("torch.nn.Linear(2, 2)\n\ndef data", "Net()\n\ndef data"),
    ]
    return load_plugin(plugin_file(folder, *given))


@pytest.mark.parametrize("buffers", [None, Buffers.LOCAL])
def test_tied_weights_are_one_layer(tmp_path: Path, buffers: Buffers | None) -> None:
    plugin = network(tmp_path, "self.b.weight = self.a.weight")
    spec = completed(SPEC.model_copy(update={"buffers": buffers}), plugin.made(0))
    assert [layer.name for layer in spec.layers] == ["a.weight", "a.bias", "b.bias"]
    model = plugin.model(spec, 1)
    load_vector(model, model_vector(model) - used(plugin, tmp_path, spec))
    assert model.get_parameter("a.weight") is model.get_parameter("b.weight")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("self.a = torch.nn.LazyLinear(2)", "layer 'a.weight' has no shape before its first batch"),
        ("self.none = torch.nn.Parameter(torch.zeros(0, 2))", "layer 'none' is empty"),
        ("self.a.to('meta')", "layer 'a.weight' has no values, it is on device meta"),
        ("self.a.half()", r"layer 'a.weight' has type torch\.float16"),
        ("self.c = torch.nn.Parameter(torch.ones(1) + 0j)", r"layer 'c' has type torch\.complex64"),
        ("self.n = torch.nn.Parameter(torch.ones(1).bool(), False)", r"layer 'n' has type torch\.bool"),
        ("self.s = torch.nn.Parameter(torch.eye(2).to_sparse(), False)", r"layer 's' is sparse"),
        ("self.b.weight = torch.nn.Parameter(self.a.weight.data)", "layers 'a.weight' and 'b.weight' lie in the same"),
        ("self.b.bias = torch.nn.Parameter(self.a.bias.data, False)", "layers 'a.bias' and 'b.bias' lie in the same"),
        ("self.b.bias = torch.nn.Parameter(torch.zeros(1).expand(2))", r"layer 'b.bias' repeats its own memory"),
        ("self.add_module('x' * 3000, torch.nn.Linear(2, 2))", "a layer that no study can name"),
        ("torch.nn.utils.parametrizations.spectral_norm(self.a)", r"keeps buffers \(a\.parametrizations\.weight"),
        ("type(self).get_extra_state = lambda self: 3", "keeps '_extra_state', which is no tensor"),
    ],
)
def test_layers_that_cannot_be_shared_are_named(tmp_path: Path, changed: str, said: str) -> None:
    plugin = network(tmp_path, changed)
    with pytest.raises(UnusableUpdate, match=rf"^plug-in .*plugin\.py: .*{said}") as at_creation:
        completed(SPEC, plugin.made(0))
    assert "\n" not in str(at_creation.value)
    with pytest.raises(UnusableUpdate, match=said):
        plugin.model(SPEC, 0)


@pytest.mark.parametrize(
    "changed",
    [
        "torch.nn.utils.parametrizations.weight_norm(self.a)",
        "self.more = torch.nn.ParameterList([torch.ones(2), torch.ones(3)])",
        "self.twice = self.a",
        "self.register_buffer('table', torch.ones(2), persistent=False)",
        "self.b.weight.requires_grad_(False)",
        "self.b.weight = torch.nn.Parameter(torch.ones(2, 2).t())",
    ],
)
def test_models_of_other_forms_run(tmp_path: Path, changed: str) -> None:
    plugin = network(tmp_path, changed)
    used(plugin, tmp_path, completed(SPEC, plugin.made(0)))


def test_a_state_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    plugin = network(tmp_path, "type(self).state_dict = lambda self: 1 / 0")
    with pytest.raises(ConfigurationError, match=r"state_dict\(\) fails.*: ZeroDivisionError"):
        completed(SPEC, plugin.made(0))


def test_a_failing_layer_is_named(tmp_path: Path) -> None:
    plugin = network(tmp_path, "self.b = torch.nn.Linear(3, 2)")
    spec = completed(SPEC, plugin.made(0))
    data = plugin.data(tmp_path / "value", spec)
    with pytest.raises(ConfigurationError, match="the forward pass or the loss fails in layer 'b': RuntimeError"):
        evaluate(plugin.model(spec, 0), data.train, CPU, plugin.loss)
