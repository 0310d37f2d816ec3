"""A site's plug-in: it trains like a built-in model, and every mistake in it is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from client_agent.learning.flat_vector import layer_shapes, model_vector
from client_agent.learning.names import NO_NAMES, DataNames
from client_agent.learning.plugin import load_plugin
from client_agent.learning.trainer import compute_update
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.wire.messages import LayerShape, ModelSpec, TrainingSpec

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


def test_a_plugin_trains(tmp_path: Path) -> None:
    plugin = load_plugin(plugin_file(tmp_path))
    state = torch.get_rng_state()
    model = plugin.model(SPEC, 4)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(model_vector(model), model_vector(plugin.model(SPEC, 4)))
    data = plugin.data(tmp_path / "value", SPEC)
    assert data.train.X[0, 0] == 1.5
    assert (len(data.train), len(data.test)) == (3, 1)
    update = compute_update(
        model, data.train, TrainingSpec(), round=1, seed=1, device=torch.device("cpu"), loss=plugin.loss
    )
    assert data.validation is None
    assert update.shape == (6,)
    assert np.count_nonzero(update) == 6


def test_a_plugin_may_set_examples_apart_for_validation(tmp_path: Path) -> None:
    path = plugin_file(tmp_path, ("(X[:1], y[:1])", "(X[:1], y[:1]), (X[:2], y[:2])"))
    data = load_plugin(path).data(tmp_path / "value", SPEC)
    assert data.validation is not None
    assert (len(data.train), len(data.test), len(data.validation)) == (3, 1, 2)


@pytest.mark.parametrize("name", ["model", "data", "loss"])
def test_a_missing_function_is_named(tmp_path: Path, name: str) -> None:
    path = plugin_file(tmp_path, (f"def {name}(", f"def _{name}("))
    with pytest.raises(ConfigurationError, match=f"function '{name}' is missing"):
        load_plugin(path)


def test_files_that_do_not_load(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is missing"):
        load_plugin(tmp_path / "nothing.py")
    text = tmp_path / "plugin.txt"
    text.write_text(GOOD)
    with pytest.raises(ConfigurationError, match=r"must end in \.py"):
        load_plugin(text)
    with pytest.raises(ConfigurationError, match="does not load: ModuleNotFoundError"):
        load_plugin(plugin_file(tmp_path, ("import torch\n", "import torch\nimport no_such_module_anywhere\n")))
    with pytest.raises(ConfigurationError, match="does not load: SyntaxError"):
        load_plugin(plugin_file(tmp_path, ("def model()", "def model(")))


def test_models_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"model\(\) gave int"):
        load_plugin(plugin_file(tmp_path, ("torch.nn.Linear(2, 2)", "3"))).model(SPEC, 0)
    with pytest.raises(ConfigurationError, match=r"'weight' \[3, 2\] stands where"):
        load_plugin(plugin_file(tmp_path, ("Linear(2, 2)", "Linear(2, 3)"))).model(SPEC, 0)
    with pytest.raises(UnusableUpdate, match="GroupNorm"):
        load_plugin(plugin_file(tmp_path, ("Linear(2, 2)", "BatchNorm1d(2)"))).model(SPEC, 0)
    assert layer_shapes(load_plugin(plugin_file(tmp_path)).model(SPEC, 0)) == SPEC.layers


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return (X, y), (X[:1], y[:1])", "return X", r"data\(\) gave ndarray"),
        ("(X[:1], y[:1])", "X", r"test part of data\(\) is no pair"),
        ("return (X, y),", "return (X, [0, 1, 0]),", r"train part of data\(\) is no pair"),
        ("np.float32)", "np.float64)", r"train part of data\(\): X has type float64"),
        ("[0, 1, 0]", "[0, 1, 2]", r"train part of data\(\): y lies in 0\.\.2"),
        ("return (X, y), ", "return (X[:0], y[:0]), ", "no training example"),
    ],
)
def test_data_that_does_not_fit(tmp_path: Path, old: str, new: str, said: str) -> None:
    plugin = load_plugin(plugin_file(tmp_path, (old, new)))
    with pytest.raises(ConfigurationError, match=said):
        plugin.data(tmp_path / "value", SPEC)


@pytest.mark.parametrize(("returned", "said"), [("model(batch.X)", r"shape \[3, 2\]"), ("1.0", "float")])
def test_a_loss_that_is_no_scalar(tmp_path: Path, returned: str, said: str) -> None:
    path = plugin_file(tmp_path, ("torch.nn.functional.cross_entropy(model(batch.X), batch.y)", returned))
    plugin = load_plugin(path)
    model, data = plugin.model(SPEC, 0), plugin.data(tmp_path / "value", SPEC)
    with pytest.raises(ConfigurationError, match=f"loss.*{said}, expected a scalar"):
        compute_update(model, data.train, TrainingSpec(), round=1, seed=1, device=torch.device("cpu"), loss=plugin.loss)


def names_function(folder: Path, returned: str) -> Path:
    return plugin_file(folder, ("def model()", f"def names(path):\n    return {returned}\n\ndef model()"))


def test_names_are_optional_and_may_be_given_in_part(tmp_path: Path) -> None:
    value = tmp_path / "value"
    assert load_plugin(plugin_file(tmp_path)).names(value) == NO_NAMES
    plugin = load_plugin(names_function(tmp_path, "None, ['no', path.read_text()]"))
    assert plugin.names(value) == DataNames(classes=("no", "1.5"))
    assert plugin.data(value, SPEC).names == plugin.names(value)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("['a', 'b']", r"names\(\) gave \['a', 'b'\], expected \(feature_names, class_names\)"),
        ("'ab', None", "feature_names 'ab', expected a list of texts or None"),
        ("[], None", "expected a list of texts or None"),
        ("None, [1, 2]", r"class_names \[1, 2\], expected a list of texts"),
        ("['a', 'a'], None", r"names\(\): feature_names: 'a' is there more than once"),
    ],
)
def test_names_that_are_none_are_refused(tmp_path: Path, returned: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load_plugin(names_function(tmp_path, returned)).names(tmp_path / "value")
