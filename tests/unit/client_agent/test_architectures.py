"""Networks of a library by name, frozen layers from a site's file: what is made, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import layer_shapes, model_vector, training_mode
from client_agent.learning.models import build_model, completed, freeze, frozen_tensors, installed_version, network_of
from client_agent.learning.settings import ModelSources
from client_agent.learning.study_file import study_from_toml
from client_agent.learning.trainer import train_round
from client_agent.model.export import export, load_exported
from client_agent.model.site_model import HeldModel
from client_agent.site.journal import SiteState
from protocol.errors import ConfigurationError
from protocol.messages.control import ModelSpec, Study, TrainingSpec
from protocol.messages.model import ArchitectureSpec, Argument, Buffers
from tests.unit.client_agent.federation import ROSTER

SMALL = (
    ("block", "basic"),
    ("layers", (1, 1, 1, 1)),
    ("block_inplanes", (4, 4, 8, 8)),
    ("spatial_dims", 2),
    ("n_input_channels", 1),
    ("conv1_t_size", 3),
    ("num_classes", 2),
)
ALL = ModelSources(architectures=None)
FILE = "small.safetensors"
STUDY = """
name = "head"
rounds = 2
[model]
kind = "library"
inputs = [1, 16, 16]
{more}
[model.architecture]
library = "monai"
name = "ResNet"
[model.architecture.arguments]
block = "basic"
layers = [1, 1, 1, 1]
block_inplanes = [4, 4, 8, 8]
spatial_dims = 2
n_input_channels = 1
conv1_t_size = 3
num_classes = 2
{arguments}
[rule]
name = "fedavg"
[training]
update = "local_sgd"
[parameters]
clip_norm = 64.0
"""
HEAD = f'buffers = "local"\ntrainable = ["fc", "layer4.0.bn2"]\nweights = "{FILE}"'


def architecture(**changes: object) -> ArchitectureSpec:
    arguments = tuple(Argument(name=name, value=value) for name, value in SMALL)
    fields = {"library": "monai", "library_version": installed_version("monai"), "name": "ResNet"}
    return ArchitectureSpec.model_validate({**fields, "arguments": arguments, **changes})


def test_every_argument_stands_once() -> None:
    with pytest.raises(ValueError, match="every argument stands once"):
        architecture(arguments=(Argument(name="act", value="relu"), Argument(name="act", value="elu")))


def spec(buffers: Buffers = Buffers.SHARED, **changes: object) -> ModelSpec:
    given = ModelSpec(
        kind="library", inputs=(1, 16, 16), architecture=architecture(**changes), buffers=buffers, layers=()
    )
    return completed(given, network_of(given, ALL))


def study(sources: ModelSources = ALL, *, more: str = 'buffers = "local"', arguments: str = "") -> Study:
    return study_from_toml(STUDY.format(more=more, arguments=arguments), "s.toml", ROSTER, None, None, sources)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A folder with the values of a whole network, as somebody else trained it."""
    torch.manual_seed(5)
    network = network_of(spec(), ALL)
    with torch.no_grad():
        for buffer in network.buffers():
            buffer.add_(1)
    save_file(dict(network.state_dict()), tmp_path / FILE)
    return tmp_path


def test_a_network_by_name_has_the_studys_layers_and_first_values() -> None:
    of = spec()
    model = build_model(of, 3, ModelSources(("monai.ResNet",)))
    assert layer_shapes(model) == of.layers
    assert of.layers[0].name == "conv1.weight"
    assert of.layers[-1].name.endswith("running_var")
    np.testing.assert_array_equal(model_vector(model), model_vector(build_model(of, 3, ALL)))
    assert model.eval()(torch.zeros(1, 1, 16, 16)).shape == (1, 2)


@pytest.mark.parametrize(
    ("sources", "changes", "said"),
    [
        (ModelSources(), {}, r"monai\.ResNet, which this site does not list: add it to key 'architectures'"),
        (ModelSources(("monai.DenseNet121",)), {}, "does not list"),
        (ALL, {"library_version": "0.9.0"}, r"monai 0\.9\.0, installed is .*pip install 'monai==0\.9\.0'"),
        (ALL, {"name": "get_pretrained_resnet_medicalnet"}, "has no network"),
        (ALL, {"name": "np"}, "has no network"),
        (ALL, {"arguments": (Argument(name="depth", value=3),)}, r"cannot be made: TypeError.*it takes"),
        (ALL, {"arguments": (*architecture().arguments[:-1], Argument(name="act", value="system"))}, "cannot be made"),
    ],
)
def test_what_a_site_does_not_let_be_made(sources: ModelSources, changes: dict[str, object], said: str) -> None:
    asked = ModelSpec(kind="library", inputs=(1, 16, 16), architecture=architecture(**changes), layers=())
    with pytest.raises(ConfigurationError, match=said):
        network_of(asked, sources)


@pytest.mark.parametrize(
    "line",
    [
        "pretrained = true",
        'model_path = "x"',
        'weights_url = "x"',
        'act = "os.system"',
        'act = "a/b"',
        'norm = ["group", { num_groups = 2 }]',
        "widen_factor = 1048577",
        "act = [[[1]]]",
        f"act = {list(range(65))}",
    ],
)
def test_arguments_are_sizes_and_words_alone(line: str) -> None:
    with pytest.raises(ConfigurationError, match=r"s\.toml: model: .*architecture"):
        study(arguments=line)


def test_networks_that_would_fetch_their_values_do_not() -> None:
    arguments = (Argument(name="model_name", value="resnet10"), Argument(name="spatial_dims", value=2))
    asked = ModelSpec(
        kind="library",
        architecture=architecture(name="ResNetFeatures", arguments=arguments),
        buffers=Buffers.LOCAL,
        layers=(),
    )
    assert len(layer_shapes_of(asked)) > 10


def layer_shapes_of(asked: ModelSpec) -> tuple[object, ...]:
    return completed(asked, network_of(asked, ALL)).layers


def test_the_head_of_a_pretrained_network_is_all_that_is_shared(weights: Path) -> None:
    sources = ModelSources(None, weights)
    of = study(sources, more=HEAD)
    assert [layer.name for layer in of.model.layers] == ["fc.weight", "fc.bias"]
    assert of.parameters.dimension == 2 * 8 + 2
    model = build_model(of.model, 1, sources)
    frozen = dict(frozen_tensors(model))
    assert frozen["bn1.running_mean"].tolist() == [1.0] * 4
    assert "layer4.0.bn2.running_mean" not in frozen  # its layer is trained
    random = np.random.default_rng(1)
    data = Examples(random.normal(size=(8, 1, 16, 16)).astype(np.float32), np.arange(8) % 2)
    sgd = TrainingSpec(update="local_sgd", batch_size=4, local_learning_rate=0.1)
    before = {name: tensor.clone() for name, tensor in frozen.items()}
    done = train_round(model, data, sgd, round=1, seed=1, device=torch.device("cpu"))
    assert done.update.any()
    assert len(done.update) == 18
    assert len(done.personal) == 4 * 8 + 1  # the one normalisation layer that is trained, and stays
    assert all(torch.equal(tensor, before[name]) for name, tensor in frozen_tensors(model))
    training_mode(model)
    learning = [name for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d) and m.training]
    assert learning == ["layer4.0.bn2"]


def other_values(path: Path) -> None:
    torch.manual_seed(6)
    save_file(dict(network_of(spec(), ALL).state_dict()), path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (other_values, "the frozen layers here have digest"),
        (lambda path: save_file({"fc.weight": torch.zeros(1)}, path), "no values for the frozen layer 'conv1.weight'"),
        (lambda path: save_file({"conv1.weight": torch.zeros(1)}, path), "is torch.float32.1., expected"),
        (lambda path: path.write_bytes(b"no"), "cannot be read"),
        (lambda path: path.unlink(), "cannot be read"),
    ],
)
def test_a_site_with_other_frozen_layers_takes_no_part(spoil: Callable[[Path], None], said: str, weights: Path) -> None:
    sources = ModelSources(None, weights)
    of = study(sources, more=HEAD)
    spoil(weights / FILE)
    with pytest.raises(ConfigurationError, match=said):
        build_model(of.model, 1, sources)
    with pytest.raises(ConfigurationError, match="set key 'weights' to the folder"):
        build_model(of.model, 1, ALL)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('trainable = ["fc"]', "give both"),
        (
            'trainable = ["head"]\nweights = "small.safetensors"',
            "no layer's name begins with 'head'; the model has conv1",
        ),
        ('trainable = ["fc"]\nweights = "../small.safetensors"', "frozen.weights"),
        ('personal = ["input"]', "leave them out"),
        ("", r"buffers = 'local'"),
    ],
)
def test_a_study_file_that_cannot_be(more: str, said: str, weights: Path) -> None:
    with pytest.raises(Exception, match=said):
        study(ModelSources(None, weights), more=more)


def test_an_exported_network_of_a_library_needs_its_listing_and_no_file_of_frozen_layers(
    weights: Path, tmp_path: Path
) -> None:
    sources = ModelSources(("monai.ResNet",), weights)
    of = study(sources, more=HEAD)
    network = build_model(of.model, 1, sources).eval()
    state = SiteState(study_digest=of.digest(), training_seed=1, model_version=1)
    out = tmp_path / "out"
    export(HeldModel(of, state, 1, model_vector(network), network, ()), tmp_path, out, is_requester=True)
    X = np.random.default_rng(2).normal(size=(3, 1, 16, 16)).astype(np.float32)
    again = load_exported(out, None, ModelSources(("monai.ResNet",)))
    with torch.no_grad():
        np.testing.assert_array_equal(again.outputs(X), network(torch.from_numpy(X)).numpy())
    with pytest.raises(ConfigurationError, match="does not list"):
        load_exported(out, None, ModelSources())


def test_a_tied_layer_is_trained_by_either_of_its_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    freeze(model, ("1",))
    assert [name for name, one in model.named_parameters() if one.requires_grad] == ["0.weight", "1.bias"]
