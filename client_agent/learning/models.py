"""A study's models, each made from a ModelSpec and a seed: built in (linear, MLP, a small CNN) or from a library.

Sizes of a specification:
    linear   inputs of any shape, flattened -> classes, or as many outputs as the study's task takes
    mlp      inputs, flattened -> hidden[0] -> ... -> classes, the activation between
    cnn      inputs (channels, height, width); all but the last of hidden are 3x3 convolutions with stride 2 and
             padding 1, the last is a dense layer; the activation between. (32, 64, 128, 128) on (1, 28, 28) is the
             network of the MNIST study.
``dropout`` stands before every dense layer. ``personal`` puts affine layers around the network: ``input``, one entry
a feature, and ``target``, one entry per class (client_agent.learning.personal). The built-in models have no buffers, so
all of their state is shared or personal. Initial values are protocol.shared_model's, personal layers begin as the
identity, frozen ones as the site's file has them (client_agent.architectures.frozen).
"""

from __future__ import annotations

from math import prod
from typing import Literal

from torch import nn

from client_agent.architectures.frozen import freeze, frozen_digest, load_frozen, require_frozen
from client_agent.architectures.library import library_network
from client_agent.architectures.sources import NO_SOURCES, ModelSources
from client_agent.architectures.statistics import keep_buffers
from client_agent.learning.flat_vector import layer_shapes, load_vector
from client_agent.learning.foreign_code import came_from
from client_agent.learning.personal import Affine, Personalised
from client_agent.learning.seeding import private_state
from protocol.errors import ConfigurationError
from protocol.messages.control import ModelSpec
from protocol.messages.model import FrozenSpec
from protocol.shared_model import seeded_model

BuiltIn = Literal["linear", "mlp", "cnn"]
Activation = Literal["relu", "tanh"]
PersonalPlace = Literal["input", "target"]


def model_spec(
    kind: BuiltIn,
    inputs: tuple[int, ...],
    hidden: tuple[int, ...],
    classes: int,
    *,
    activation: Activation = "relu",
    dropout: float = 0.0,
    personal: tuple[PersonalPlace, ...] = (),
) -> ModelSpec:
    """The specification of a built-in model with its shared layers filled in. Raises: ConfigurationError"""
    spec = ModelSpec(
        kind=kind,
        inputs=inputs,
        hidden=hidden,
        classes=classes,
        activation=activation,
        dropout=dropout,
        personal=personal,
        layers=(),
    )
    return spec.model_copy(update={"layers": layer_shapes(_network(spec))})


def completed(spec: ModelSpec, model: nn.Module) -> ModelSpec:
    """The specification with what only the network itself says: its shared layers, and the digest of frozen ones.

    Raises: UnusableUpdate, as :func:`layer_shapes`
    """
    keep_buffers(model, spec.buffers)
    layers = layer_shapes(model)
    digest, frozen = frozen_digest(model), None
    if digest is not None:
        given = spec.frozen or FrozenSpec(values_digest=digest)
        frozen = given.model_copy(update={"values_digest": digest})
    return spec.model_copy(update={"layers": layers, "frozen": frozen})


def network_of(spec: ModelSpec, sources: ModelSources) -> nn.Module:
    """The network of a specification that may not be completed yet, frozen layers filled in; shared values are any.

    Raises: ConfigurationError
    """
    with private_state():
        model = _network(spec) if spec.architecture is None else library_network(spec.architecture, sources)
    if spec.architecture is not None:
        came_from(model, spec.architecture.listed_as)
    if spec.frozen is not None and spec.frozen.weights is not None:
        freeze(model, spec.frozen.trainable)
        load_frozen(model, sources.weights, spec.frozen.weights)
    return model


def dimension(spec: ModelSpec) -> int:
    """D: the number of shared parameters."""
    return sum(prod(layer.shape) for layer in spec.layers)


def build_model(spec: ModelSpec, seed: int, sources: ModelSources = NO_SOURCES) -> nn.Module:
    """A model with the values that every study with this seed begins with, on the CPU.

    Raises: ConfigurationError for a plug-in (client_agent.learning.plugin), for a network or a file that the site does
            not have or list, or when the layers are not the pinned ones
    """
    if spec.kind == "plugin":
        raise ConfigurationError("the study's model is a plug-in: give the site's plug-in file")
    model = network_of(spec, sources)
    require_layers(model, spec)
    load_vector(model, seeded_model(spec.layers, seed))
    return model


def require_layers(model: nn.Module, spec: ModelSpec) -> None:
    """The model's layers are the study's; from here on its buffers are kept as the study says.

    Raises: ConfigurationError naming the first layer that differs
    """
    keep_buffers(model, spec.buffers)
    found, pinned = layer_shapes(model), spec.layers
    require_frozen(model, spec.frozen)
    for ours, theirs in zip(found, pinned, strict=False):
        if ours != theirs:
            raise ConfigurationError(
                f"model: layer {ours.name!r} {list(ours.shape)} stands where the study has "
                f"{theirs.name!r} {list(theirs.shape)}"
            )
    if len(found) != len(pinned):
        raise ConfigurationError(f"model: {len(found)} layers, the study has {len(pinned)}")


def _network(spec: ModelSpec) -> nn.Module:
    _check_sizes(spec)
    shared = nn.Sequential(*(_convolutional(spec) if spec.kind == "cnn" else _dense(spec)))
    if not spec.personal:
        return shared
    return Personalised(
        shared,
        input=Affine(spec.inputs) if "input" in spec.personal else None,
        target=Affine((spec.classes,)) if "target" in spec.personal else None,
    )


def _check_sizes(spec: ModelSpec) -> None:
    inputs, hidden, classes = spec.inputs, spec.hidden, spec.classes
    if not inputs or min(inputs) < 1 or classes < 1 or any(width < 1 for width in hidden):
        raise ConfigurationError(
            f"model: inputs={list(inputs)}, hidden={list(hidden)}, classes={classes}; sizes start at 1"
        )
    if spec.kind == "linear" and hidden:
        raise ConfigurationError(f"model: a linear model takes no hidden layers, found {list(hidden)}")
    if spec.kind == "cnn" and (len(inputs) != 3 or len(hidden) < 2):
        raise ConfigurationError(
            f"model: a cnn takes inputs [channels, height, width] and at least two hidden sizes, "
            f"found {list(inputs)} and {list(hidden)}"
        )
    if len(set(spec.personal)) != len(spec.personal):
        raise ConfigurationError(f"model: personal={list(spec.personal)}; name each of 'input' and 'target' once")


def _dense(spec: ModelSpec) -> list[nn.Module]:
    return [nn.Flatten(), *_dense_layers(spec, prod(spec.inputs), spec.hidden)]


def _dense_layers(spec: ModelSpec, width: int, hidden: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for next_width in hidden:
        layers += [*_dropout(spec), nn.Linear(width, next_width), _activation(spec)]
        width = next_width
    return [*layers, *_dropout(spec), nn.Linear(width, spec.classes)]


def _convolutional(spec: ModelSpec) -> list[nn.Module]:
    channels, height, width = spec.inputs
    layers: list[nn.Module] = []
    for next_channels in spec.hidden[:-1]:
        layers += [nn.Conv2d(channels, next_channels, 3, stride=2, padding=1), _activation(spec)]
        channels, height, width = next_channels, (height + 1) // 2, (width + 1) // 2
    return [*layers, nn.Flatten(), *_dense_layers(spec, channels * height * width, spec.hidden[-1:])]


def _activation(spec: ModelSpec) -> nn.Module:
    return nn.Tanh() if spec.activation == "tanh" else nn.ReLU()


def _dropout(spec: ModelSpec) -> list[nn.Module]:
    return [nn.Dropout(spec.dropout)] if spec.dropout else []
