"""The tensors of a model that a study shares, and those that stay at a site: statistics and personal layers.

Batch norm's running statistics, which no gradient moves (docs/protocol.md 2):

    local    FedBN: everything of a normalisation layer that keeps statistics stays at its site, the affine weight and
             bias too. Source: Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local
             Batch Normalization", ICLR 2021, section 3
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

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from protocol.errors import ConfigurationError, UnusableUpdate
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
