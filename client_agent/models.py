"""The built-in models: linear (softmax), MLP and a small CNN; each made from a ModelSpec and a seed.

Sizes of a specification:
    linear   inputs of any shape, flattened -> classes
    mlp      inputs, flattened -> hidden[0] -> ... -> classes, ReLU between
    cnn      inputs (channels, height, width); all but the last of hidden are 3x3 convolutions with stride 2 and
             padding 1, the last is a dense layer; ReLU between. (32, 64, 128, 128) on (1, 28, 28) is the network
             of the MNIST study.
The built-in models have no buffers, so all of their state is shared. Initial values depend on the seed only.
"""

from __future__ import annotations

from math import prod
from typing import Literal

import torch
from torch import nn

from client_agent.update import layer_shapes
from protocol.errors import ConfigurationError
from protocol.wire.messages import ModelSpec

BuiltIn = Literal["linear", "mlp", "cnn"]


def model_spec(kind: BuiltIn, inputs: tuple[int, ...], hidden: tuple[int, ...], classes: int) -> ModelSpec:
    """The specification of a built-in model with its layers filled in. Raises: ConfigurationError"""
    return ModelSpec(
        kind=kind,
        inputs=inputs,
        hidden=hidden,
        classes=classes,
        layers=layer_shapes(_network(kind, inputs, hidden, classes)),
    )


def dimension(spec: ModelSpec) -> int:
    """D: the number of shared parameters."""
    return sum(prod(layer.shape) for layer in spec.layers)


def build_model(spec: ModelSpec, seed: int) -> nn.Module:
    """A built-in model with initial values drawn from ``seed`` alone, on the CPU.

    Raises: ConfigurationError for a plug-in (see client_agent.plugin) or when the layers are not the pinned ones
    """
    if spec.kind == "plugin":
        raise ConfigurationError("the study's model is a plug-in: give the site's plug-in file")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        model = _network(spec.kind, spec.inputs, spec.hidden, spec.classes)
    require_layers(model, spec)
    return model


def require_layers(model: nn.Module, spec: ModelSpec) -> None:
    """ConfigurationError naming the first layer that differs from the study's."""
    found, pinned = layer_shapes(model), spec.layers
    for ours, theirs in zip(found, pinned, strict=False):
        if ours != theirs:
            raise ConfigurationError(
                f"model: layer {ours.name!r} {list(ours.shape)} stands where the study has "
                f"{theirs.name!r} {list(theirs.shape)}"
            )
    if len(found) != len(pinned):
        raise ConfigurationError(f"model: {len(found)} layers, the study has {len(pinned)}")


def _network(kind: BuiltIn, inputs: tuple[int, ...], hidden: tuple[int, ...], classes: int) -> nn.Module:
    if not inputs or min(inputs) < 1 or classes < 2 or any(width < 1 for width in hidden):
        raise ConfigurationError(
            f"model: inputs={list(inputs)}, hidden={list(hidden)}, classes={classes}; sizes start at 1, classes at 2"
        )
    if kind == "linear":
        if hidden:
            raise ConfigurationError(f"model: a linear model takes no hidden layers, found {list(hidden)}")
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(inputs), classes))
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), *_dense(prod(inputs), hidden, classes))
    return _cnn(inputs, hidden, classes)


def _dense(width: int, hidden: tuple[int, ...], classes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for next_width in hidden:
        layers += [nn.Linear(width, next_width), nn.ReLU()]
        width = next_width
    return [*layers, nn.Linear(width, classes)]


def _cnn(inputs: tuple[int, ...], hidden: tuple[int, ...], classes: int) -> nn.Module:
    if len(inputs) != 3 or len(hidden) < 2:
        raise ConfigurationError(
            f"model: a cnn takes inputs [channels, height, width] and at least two hidden sizes, "
            f"found {list(inputs)} and {list(hidden)}"
        )
    channels, height, width = inputs
    layers: list[nn.Module] = []
    for next_channels in hidden[:-1]:
        layers += [nn.Conv2d(channels, next_channels, 3, stride=2, padding=1), nn.ReLU()]
        channels, height, width = next_channels, (height + 1) // 2, (width + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), *_dense(channels * height * width, hidden[-1:], classes))
