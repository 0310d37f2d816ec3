"""A study's models, each made from a ModelSpec and a seed: built in (linear, MLP, a small CNN) or from a library.

Sizes of a specification:
    linear   inputs of any shape, flattened -> classes, or as many outputs as the study's task takes
    mlp      inputs, flattened -> hidden[0] -> ... -> classes, the activation between
    cnn      inputs (channels, height, width); all but the last of hidden are 3x3 convolutions with stride 2 and
             padding 1, the last is a dense layer; the activation between. (32, 64, 128, 128) on (1, 28, 28) is the
             network of the MNIST study.
``dropout`` stands before every dense layer. ``personal`` puts affine layers around the network: ``input``, one entry
a feature, and ``target``, one entry per class (client_agent.learning.flat_vector). Initial values are
protocol.shared_model's; personal layers begin as the identity.

A study names a library's network by version, class and plain arguments, so nothing of the requester's runs here; the
site's setting ``architectures`` lists what it lets be made. Frozen layers come from a safetensors file that every site
holds itself (setting ``weights`` names the folder), or from the plug-in; the study pins their digest.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from client_agent.learning.flat_vector import (
    COUNTER,
    Affine,
    Personalised,
    keep_buffers,
    layer_shapes,
    load_vector,
    normalisations,
)
from client_agent.learning.foreign_code import came_from
from client_agent.learning.settings import NO_SOURCES, ModelSources
from protocol.errors import ConfigurationError
from protocol.messages.control import ModelSpec
from protocol.messages.model import ArchitectureSpec, FrozenSpec, Value
from protocol.shared_model import seeded_model
from protocol.text import printable

_MODULES: Final = {"monai": "monai.networks.nets"}


def installed_version(library: str) -> str:
    """Raises: ConfigurationError when it is not installed"""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigurationError(
            f"the study's network comes from {library}, which is not installed; install it with: "
            "pip install 'moiety[models]'"
        ) from None


def library_network(spec: ArchitectureSpec, sources: ModelSources) -> nn.Module:
    """The network with whatever values the library gives it.

    Raises: ConfigurationError when the site does not list it, has another version, or it takes no such arguments
    """
    if sources.architectures is not None and spec.listed_as not in sources.architectures:
        raise ConfigurationError(
            f"the study's network is {spec.listed_as}, which this site does not list: add it to key 'architectures' of "
            "the agent's settings to take part"
        )
    found = installed_version(spec.library)
    if found != spec.library_version:
        raise ConfigurationError(
            f"the study takes {spec.library} {spec.library_version}, installed is {found}: "
            f"pip install '{spec.library}=={spec.library_version}'"
        )
    made = getattr(importlib.import_module(_MODULES[spec.library]), spec.name, None)
    if not (inspect.isclass(made) and issubclass(made, nn.Module) and made.__module__.startswith(f"{spec.library}.")):
        raise ConfigurationError(f"{spec.library} has no network {spec.name!r} in {_MODULES[spec.library]}")
    signature = inspect.signature(made)
    arguments = {argument.name: _plain(argument.value) for argument in spec.arguments}
    fetching = {name: False for name, one in signature.parameters.items() if "pretrain" in name and one.default is True}
    try:
        signature.bind(**arguments)
        network: nn.Module = made(**arguments, **fetching)
    except Exception as error:  # whatever a library raises about values that it cannot take
        raise ConfigurationError(
            f"{spec.listed_as} cannot be made: {type(error).__name__}: {printable(str(error), 300)}; it takes "
            f"{signature}"
        ) from None
    return network


def _plain(value: Value) -> object:
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def freeze(model: nn.Module, trainable: tuple[str, ...]) -> None:
    """Train only the parameters whose names begin so. Raises: ConfigurationError for a beginning of no name"""
    named = list(model.named_parameters(remove_duplicate=False))
    names = [name for name, _ in named]
    for beginning in trainable:
        if not any(_begins(name, beginning) for name in names):
            raise ConfigurationError(
                f"model.trainable: no layer's name begins with {beginning!r}; the model has {_tops(names)}"
            )
    trained = {id(one) for name, one in named if any(_begins(name, beginning) for beginning in trainable)}
    for _, parameter in named:
        parameter.requires_grad_(id(parameter) in trained)


def frozen_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Name and tensor of all that is not trained: parameters, then the running statistics of frozen layers."""
    found = [(name, parameter.data) for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if not found:
        return []
    moving = {id(module) for _, module in normalisations(model)}
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and id(module) not in moving:
            buffers = module.named_buffers(prefix=name, recurse=False)
            found += [(full, buffer) for full, buffer in buffers if not full.endswith(COUNTER)]
    return found


def frozen_digest(model: nn.Module) -> str | None:
    """SHA-256 over names, shapes and little-endian float32 values of the frozen layers; None without any."""
    tensors = frozen_tensors(model)
    if not tensors:
        return None
    hashed = hashlib.sha256()
    for name, tensor in tensors:
        hashed.update(json.dumps([name, list(tensor.shape)]).encode() + b"\n")
        hashed.update(np.ascontiguousarray(tensor.cpu().numpy(), dtype="<f4").tobytes())
    return hashed.hexdigest()


def load_frozen(model: nn.Module, folder: Path | None, file: str) -> None:
    """Fill in the frozen layers from a site's file. Raises: ConfigurationError that says what is missing"""
    if folder is None:
        raise ConfigurationError(
            f"the study's frozen layers come from {file}: set key 'weights' to the folder that holds it"
        )
    found = _read(folder / file)
    with torch.no_grad():
        for name, tensor in frozen_tensors(model):
            if name not in found:
                raise ConfigurationError(f"{folder / file}: no values for the frozen layer {name!r}")
            value = found[name]
            if value.shape != tensor.shape or value.dtype != torch.float32:
                raise ConfigurationError(
                    f"{folder / file}: layer {name!r} is {value.dtype}{list(value.shape)}, expected "
                    f"torch.float32{list(tensor.shape)}"
                )
            tensor.copy_(value)


def require_frozen(model: nn.Module, pinned: FrozenSpec | None) -> None:
    """The frozen layers are those that the study pins. Raises: ConfigurationError"""
    found, wanted = frozen_digest(model), None if pinned is None else pinned.values_digest
    if found != wanted:
        raise ConfigurationError(
            f"the frozen layers here have digest {found or 'none'}, the study pins {wanted or 'none'}: every "
            "site needs the same values; get the requester's file"
        )


def _read(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(f"frozen layers {path} cannot be read: {error}") from None
    return tensors


def _begins(name: str, beginning: str) -> bool:
    return name == beginning or name.startswith(f"{beginning}.")


def _tops(names: list[str]) -> str:
    return ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))


_ONE_AT_A_TIME: Final = threading.RLock()
"""torch has one random state for the threads of all studies; so the studies of one agent train one after the other."""


@contextmanager
def private_state(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """The random state of the CPU and of ``devices`` (CUDA) is this thread's alone, and afterwards what it was."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=list(devices)):
        yield


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
    shared = nn.Sequential(*_layers(spec))
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


def _dense_layers(spec: ModelSpec, width: int, hidden: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for next_width in hidden:
        layers += [*_dropout(spec), nn.Linear(width, next_width), _activation(spec)]
        width = next_width
    return [*layers, *_dropout(spec), nn.Linear(width, spec.classes)]


def _layers(spec: ModelSpec) -> list[nn.Module]:
    if spec.kind != "cnn":
        return [nn.Flatten(), *_dense_layers(spec, prod(spec.inputs), spec.hidden)]
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
