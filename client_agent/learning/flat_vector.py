"""Model <-> flat float32 vector, and which tensors of a model a study shares, in the model's own fixed order.

Only trained parameters are shared (docs/protocol.md 2), and of those not the ones of personal layers. Behind them stand
batch norm's running statistics, which no gradient moves, as the study says:

    local    FedBN: everything of a normalisation layer that keeps statistics stays at its site, behind the personal
             parameters, the affine weight and bias too. Source: Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning
             on Non-IID Features via Local Batch Normalization", ICLR 2021, section 3
    shared   mean and variance are coordinates of the update behind those of the parameters, each
             (before - after) / server learning rate. With x the value that all sites begin with and x_i the one after
             site i's round, the server's step gives  x - eta sum w_i (x - x_i) / eta / sum w_i = sum w_i x_i / sum w_i,
             the average, whatever eta is. Clipping an update leaves statistics between the old and the new, so a
             variance stays one. The counter of batches is not shared; it starts at 0 in every round.

A study that says neither takes no model with buffers. Other buffers, and statistics of frozen layers, are constants; a
model that changes one in training is refused.

Personal layers train with the model and never leave the site: iFedAvg puts an affine layer of its own before (and
behind) the network that all sites share. Any module below a ``PersonalLayer`` is personal, in a plug-in too.

Source: Roschewitz, Hartley, Corinzia, Jaggi 2021, iFedAvg
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from client_agent.learning.foreign_code import model_code, source_of
from protocol.errors import ConfigurationError, UnusableUpdate
from protocol.messages.control import LayerShape
from protocol.messages.model import Buffers
from protocol.text import counted

NamedTensors: TypeAlias = list[tuple[str, torch.Tensor]]
COUNTER: Final = "num_batches_tracked"
EXTRA_STATE: Final = "_extra_state"
_MOVING: Final = ("running_mean", "running_var")
_KEPT: Final = "_moiety_buffers"


def keep_buffers(model: nn.Module, buffers: Buffers | None) -> None:
    """Say what becomes of the statistics of a model's layers; frozen layers are to be frozen before."""
    setattr(model, _KEPT, buffers)


def kept_buffers(model: nn.Module) -> Buffers | None:
    """Return the choice made by :func:`keep_buffers`; None where none was made."""
    kept: Buffers | None = getattr(model, _KEPT, None)
    return kept


def require_no_buffers(model: nn.Module) -> None:
    """Nothing but parameters, where the study does not say what becomes of the rest. Raises: UnusableUpdate"""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = [name for name in model.state_dict() if name not in parameters]
    apart = [name for name in buffers if name.rpartition(".")[2] == EXTRA_STATE]
    if apart:
        raise UnusableUpdate(f"the model keeps {apart[0]!r}, which is no tensor: make it a parameter or a constant")
    if buffers and kept_buffers(model) is None:
        raise UnusableUpdate(
            f"the model keeps buffers ({', '.join(buffers[:8])}), which are not shared: say in the study's [model] "
            "table buffers = 'local' (each site keeps its own) or 'shared' (batch norm's are averaged), or use "
            "torch.nn.GroupNorm instead of batch norm"
        )


def normalisations(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers whose statistics training moves, in the model's order."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, _NormBase)]
    some_frozen = bool(layers) and any(not parameter.requires_grad for parameter in model.parameters())
    return [
        (name, module)
        for name, module in layers
        if module.running_mean is not None
        and not (some_frozen and not any(parameter.requires_grad for parameter in module.parameters()))
    ]


def shared_statistics(model: nn.Module) -> NamedTensors:
    """Name and tensor of every statistic that is averaged, in the model's order."""
    return _of(model, _MOVING) if kept_buffers(model) is Buffers.SHARED else []


def local_statistics(model: nn.Module) -> NamedTensors:
    """Name and tensor of every statistic that stays at the site; the counters, whole numbers, among them."""
    return _of(model, (*_MOVING, COUNTER)) if kept_buffers(model) is Buffers.LOCAL else []


def has_statistics(model: nn.Module) -> bool:
    return bool(normalisations(model))


def training_mode(model: nn.Module) -> None:
    """As ``model.train()``; normalisation layers that are frozen go on normalising as they learned to."""
    model.train()
    layers = [module for module in model.modules() if isinstance(module, _NormBase)]
    moving = {id(module) for _, module in normalisations(model)} if layers else set()
    for module in layers:
        if id(module) not in moving:
            module.train(module.running_mean is None)


def least_examples(model: nn.Module) -> int:
    """The fewest examples that a batch may hold: of a single one batch norm has no variance."""
    return 2 if has_statistics(model) else 1


def require_batches(model: nn.Module, examples: int, batch_size: int, site: str = "this site") -> None:
    """There are batches that the model can train on. Raises: ConfigurationError"""
    if min(examples, batch_size) < least_examples(model):
        raise ConfigurationError(
            f"batch norm has no variance of a batch of one example, and {site} has "
            f"{counted(examples, 'training example')} in batches of {batch_size}: take more of both, or "
            "torch.nn.GroupNorm instead of batch norm"
        )


@contextmanager
def constants_kept(model: nn.Module) -> Iterator[None]:
    """Training inside changes no buffer that is neither shared nor kept at the site. Raises: UnusableUpdate"""
    moving = {id(tensor) for _, tensor in _of(model, (*_MOVING, COUNTER))}
    before = [(name, tensor, tensor.clone()) for name, tensor in model.named_buffers() if id(tensor) not in moving]
    yield
    changed = [name for name, tensor, was in before if not torch.equal(tensor, was)]
    with torch.no_grad():
        for _, tensor, was in before:
            tensor.copy_(was)
        if moving and kept_buffers(model) is not Buffers.LOCAL:
            for _, counter in _of(model, (COUNTER,)):
                counter.zero_()
    if changed:
        raise UnusableUpdate(
            f"training changes buffers {changed[:8]} of the model, which are no statistics of batch norm and cannot be "
            "shared or kept: make them parameters, or take another model"
        )


def _of(model: nn.Module, wanted: tuple[str, ...]) -> NamedTensors:
    found: NamedTensors = []
    for name, layer in normalisations(model):
        buffers = dict(layer.named_buffers(recurse=False))
        found += [(f"{name}.{one}" if name else one, buffers[one]) for one in wanted if one in buffers]
    return found


NamedParameter: TypeAlias = tuple[str, nn.Parameter]


class PersonalLayer(nn.Module):
    """A layer whose parameters stay at the site."""


class Affine(PersonalLayer):
    """(x + bias) * weight, element-wise; the identity at the start. Shapes: float32[batch, *shape] -> the same"""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(shape))
        self.weight = nn.Parameter(torch.ones(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.bias) * self.weight


class Personalised(nn.Module):
    """A shared network between two optional personal layers."""

    def __init__(self, shared: nn.Module, *, input: PersonalLayer | None, target: PersonalLayer | None) -> None:
        super().__init__()
        self.input, self.shared, self.target = input, shared, target

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.input is not None:
            x = self.input(x)
        logits: torch.Tensor = self.shared(x)
        if self.target is not None:
            logits = self.target(logits)
        return logits


def split_parameters(model: nn.Module) -> tuple[list[NamedParameter], list[NamedParameter]]:
    """:func:`shared_parameters` and :func:`personal_parameters`."""
    kept, named = _personal(model), list(model.named_parameters())
    return (
        [(name, p) for name, p in named if p.requires_grad and id(p) not in kept],
        [(name, p) for name, p in named if id(p) in kept],
    )


def personal_parameters(model: nn.Module) -> list[NamedParameter]:
    """Name and parameter of everything that stays at the site, in the model's order."""
    return split_parameters(model)[1]


def shared_parameters(model: nn.Module) -> list[NamedParameter]:
    """Name and parameter of everything that is trained and aggregated, in the model's order."""
    return split_parameters(model)[0]


def _personal(model: nn.Module) -> set[int]:
    """Identities of the parameters of personal layers, and of layers whose statistics stay at the site."""
    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, PersonalLayer)]
    if kept_buffers(model) is Buffers.LOCAL:
        layers += [layer for _, layer in normalisations(model)]
    return {id(parameter) for layer in layers for parameter in layer.parameters()}


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
