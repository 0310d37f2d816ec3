"""Model <-> flat float32 vector, with named layers in the model's own fixed order (docs/protocol.md 2).

Only parameters are shared, and of those not the ones of personal layers (client_agent.learning.personal). Buffers, such
as the running statistics of batch normalisation, would be averaged without the protection of clipping and without
meaning; a model that keeps any is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.personal import personal_parameters, shared_parameters
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.wire.messages import LayerShape

Vector = NDArray[np.float32]


def layer_shapes(model: nn.Module) -> tuple[LayerShape, ...]:
    """Names and shapes of the shared layers, in the order of the flat vector.

    Raises: UnusableUpdate when the model has buffers, no parameters, or parameters that are not float32
    """
    buffers = [name for name in model.state_dict() if name not in dict(model.named_parameters())]
    if buffers:
        raise UnusableUpdate(
            f"the model keeps buffers ({', '.join(buffers)}), which are not shared; "
            "use group norm (torch.nn.GroupNorm) instead of batch norm"
        )
    layers = tuple(LayerShape(name=name, shape=tuple(p.shape)) for name, p in shared_parameters(model))
    if not layers:
        raise UnusableUpdate("the model has no parameters to share")
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise UnusableUpdate(f"layer {name!r} has type {parameter.dtype}; parameters must be torch.float32")
    return layers


def layer_sizes(layers: tuple[LayerShape, ...]) -> tuple[tuple[str, int], ...]:
    """Name and number of coordinates of each layer, as ``check_finite`` takes them."""
    return tuple((layer.name, int(np.prod(layer.shape, dtype=np.int64))) for layer in layers)


def model_vector(model: nn.Module) -> Vector:
    """The shared parameters as one float32[D] on the CPU."""
    return flat_vector([parameter.detach() for _, parameter in shared_parameters(model)])


def load_vector(model: nn.Module, vector: Vector) -> None:
    """Set the shared parameters from float32[D]. Raises: UnusableUpdate on another length or dtype"""
    _load(shared_parameters(model), vector, "the model")


def personal_vector(model: nn.Module) -> Vector:
    """The personal parameters as one float32[P] on the CPU; P is 0 for a model without personal layers."""
    return flat_vector([parameter.detach() for _, parameter in personal_parameters(model)])


def load_personal(model: nn.Module, vector: Vector) -> None:
    """Set the personal parameters from float32[P]. Raises: UnusableUpdate on another length or dtype"""
    _load(personal_parameters(model), vector, "the personal layers")


def pick_device(wanted: str) -> torch.device:
    """``auto`` (CUDA when there is one), ``cpu``, ``cuda`` or ``cuda:n``. Raises: ConfigurationError"""
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return torch.device("cuda" if available else "cpu")
    if wanted == "cpu":
        return torch.device("cpu")
    name, _, number = wanted.partition(":")
    if name != "cuda" or (":" in wanted and not (number.isascii() and number.isdigit())):
        raise ConfigurationError(f"device: found {wanted!r}, allowed are auto, cpu, cuda and cuda:n")
    if int(number or 0) >= available:
        raise ConfigurationError(f"device: {wanted!r} was asked for, but {available} CUDA devices are here; use cpu")
    return torch.device(wanted)


def flat_vector(tensors: Sequence[torch.Tensor]) -> Vector:
    """Tensors, one a layer, as one float32 vector on the CPU."""
    if not tensors:
        return np.zeros(0, dtype=np.float32)
    joined = torch.cat([tensor.reshape(-1) for tensor in tensors]).to("cpu", torch.float32)
    return np.array(joined.numpy(), dtype=np.float32)


def _load(parameters: Sequence[tuple[str, nn.Parameter]], vector: Vector, what: str) -> None:
    expected = sum(parameter.numel() for _, parameter in parameters)
    if vector.dtype != np.float32 or vector.shape != (expected,):
        raise UnusableUpdate(
            f"a vector {vector.dtype}{list(vector.shape)} does not fit {what}, which takes float32[{expected}]"
        )
    start = 0
    with torch.no_grad():
        for _, parameter in parameters:
            piece = torch.from_numpy(vector[start : start + parameter.numel()].copy())
            parameter.copy_(piece.reshape(parameter.shape))
            start += parameter.numel()
