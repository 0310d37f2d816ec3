"""Model <-> flat float32 vector, with named layers in the model's own fixed order (docs/protocol.md 2).

Only trained parameters are shared, and of those not the ones of personal layers (client_agent.learning.personal).
Behind them stand the running statistics of batch norm where the study has them averaged; where it has them stay, they
are behind the personal parameters (client_agent.architectures.statistics).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn
from torch.nn.parameter import is_lazy

from client_agent.architectures.statistics import local_statistics, require_no_buffers, shared_statistics
from client_agent.learning.foreign_code import model_code, source_of
from client_agent.learning.personal import shared_parameters, split_parameters
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import LayerShape

Vector = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ModelParts:
    """The shared and the local part of a model: parameters, and statistics behind them.

    Looked for once, for code that goes over the model often. They stay the model's own while it stays on its device.
    """

    shared: Sequence[nn.Parameter]
    personal: Sequence[nn.Parameter]
    shared_statistics: Sequence[torch.Tensor]
    local_statistics: Sequence[torch.Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> ModelParts:
        shared, personal = split_parameters(model)
        return cls(
            [parameter for _, parameter in shared],
            [parameter for _, parameter in personal],
            [tensor for _, tensor in shared_statistics(model)],
            [tensor for _, tensor in local_statistics(model)],
        )

    def vector(self) -> Vector:
        """As :func:`model_vector`."""
        return flat_vector([tensor.detach() for tensor in (*self.shared, *self.shared_statistics)])

    def personal_vector(self) -> Vector:
        """As :func:`personal_vector`."""
        return flat_vector([tensor.detach() for tensor in (*self.personal, *self.local_statistics)])

    def load(self, vector: Vector, personal: Vector | None = None) -> None:
        """Set both, or the shared part alone. Raises: UnusableUpdate on another length or dtype"""
        _load((*self.shared, *self.shared_statistics), vector, "the model")
        if personal is not None:
            _load((*self.personal, *self.local_statistics), personal, "the personal layers")


def layer_shapes(model: nn.Module) -> tuple[LayerShape, ...]:
    """Names and shapes of the shared layers, in the order of the flat vector.

    Raises: UnusableUpdate when the study says nothing of the model's buffers, or no layer can be shared or one cannot
    """
    try:
        return _layer_shapes(model)
    except UnusableUpdate as wrong:
        raise UnusableUpdate(f"{source_of(model)}{wrong.detail}") from None


def _layer_shapes(model: nn.Module) -> tuple[LayerShape, ...]:
    for name, parameter in model.named_parameters():
        _require_values(name, parameter)
    with model_code(model, "state_dict()"):
        require_no_buffers(model)
    _require_own_memory(model)
    shared = _shared(model)
    if not shared_parameters(model):
        raise UnusableUpdate("the model has no parameters to share")
    empty = [name for name, tensor in shared if tensor.numel() == 0]
    if empty:
        raise UnusableUpdate(f"layer {empty[0]!r} is empty, there is nothing of it to share: leave it out of the model")
    try:
        return tuple(LayerShape(name=name, shape=tuple(tensor.shape)) for name, tensor in shared)
    except ValidationError as error:
        raise UnusableUpdate(f"the model has a layer that no study can name: {error.errors()[0]['msg']}") from None


def layer_sizes(layers: tuple[LayerShape, ...]) -> tuple[tuple[str, int], ...]:
    """Name and number of coordinates of each layer, as ``check_finite`` takes them."""
    return tuple((layer.name, int(np.prod(layer.shape, dtype=np.int64))) for layer in layers)


def model_vector(model: nn.Module) -> Vector:
    """The shared parameters, and averaged statistics behind them, as one float32[D] on the CPU."""
    return ModelParts.of(model).vector()


def load_vector(model: nn.Module, vector: Vector) -> None:
    """Set what :func:`model_vector` gives from float32[D]. Raises: UnusableUpdate on another length or dtype"""
    ModelParts.of(model).load(vector)


def personal_vector(model: nn.Module) -> Vector:
    """The personal parameters and statistics that stay, as one float32[P] on the CPU; P is 0 for a model without."""
    return ModelParts.of(model).personal_vector()


def load_personal(model: nn.Module, vector: Vector) -> None:
    """Set what :func:`personal_vector` gives from float32[P]. Raises: UnusableUpdate on another length or dtype"""
    parts = ModelParts.of(model)
    _load((*parts.personal, *parts.local_statistics), vector, "the personal layers")


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
    """Tensors, one per layer, as one float32 vector on the CPU."""
    if not tensors:
        return np.zeros(0, dtype=np.float32)
    joined = torch.cat([tensor.reshape(-1).to(torch.float32) for tensor in tensors]).to("cpu")
    return np.array(joined.numpy(), dtype=np.float32)


def _shared(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*shared_parameters(model), *shared_statistics(model)]


def _require_values(name: str, parameter: torch.Tensor) -> None:
    if is_lazy(parameter):
        raise UnusableUpdate(
            f"layer {name!r} has no shape before its first batch (a lazy module): give its sizes, as nn.Linear(7, 2) "
            "does in place of nn.LazyLinear(2)"
        )
    if parameter.is_meta:
        raise UnusableUpdate(f"layer {name!r} has no values, it is on device meta: make the model on the CPU")
    if parameter.layout != torch.strided:
        raise UnusableUpdate(f"layer {name!r} is sparse ({parameter.layout}); parameters must be dense")
    if parameter.dtype != torch.float32:
        raise UnusableUpdate(f"layer {name!r} has type {parameter.dtype}; parameters must be torch.float32")


def _require_own_memory(model: nn.Module) -> None:
    """No two parameters lie in the same memory: a step of one would move the other. Raises: UnusableUpdate"""
    filled = [(name, one) for name, one in model.named_parameters() if one.numel()]
    places = sorted((one.data_ptr(), _bytes(one), name) for name, one in filled)
    for (start, size, name), (after, _, other) in pairwise(places):
        if start + size > after:
            raise UnusableUpdate(
                f"layers {name!r} and {other!r} lie in the same memory without being one parameter: assign the "
                "parameter itself (b.weight = a.weight), or a copy (.clone())"
            )
    for name, one in filled:
        if _bytes(one) < one.numel() * one.element_size():
            raise UnusableUpdate(f"layer {name!r} repeats its own memory (expand): take a copy of it (.clone())")


def _bytes(tensor: torch.Tensor) -> int:
    """Return the byte range of a tensor, from the first to behind the last."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(last + 1) * tensor.element_size()


def _load(tensors: Sequence[torch.Tensor], vector: Vector, what: str) -> None:
    expected = sum(tensor.numel() for tensor in tensors)
    if vector.dtype != np.float32 or vector.shape != (expected,):
        raise UnusableUpdate(
            f"a vector {vector.dtype}{list(vector.shape)} does not fit {what}, which takes float32[{expected}]"
        )
    start = 0
    with torch.no_grad():
        for tensor in tensors:
            piece = torch.from_numpy(vector[start : start + tensor.numel()].copy())
            tensor.copy_(piece.reshape(tensor.shape))
            start += tensor.numel()
