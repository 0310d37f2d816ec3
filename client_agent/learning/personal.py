"""Personal layers: parameters that train with the model and never leave the site.

iFedAvg puts an affine layer of its own before (and behind) the network that all sites share: every site learns how
its columns are to be shifted and scaled for the others' network, and only the shared part is aggregated. What the
layer learned tells in the site's own words how its data differ.

Any module below a ``PersonalLayer`` is personal, in a plug-in too. The shared parameters are all others, in the
model's order, as far as they are trained: with averaged statistics they make up the layers of the study, the flat
vector and the update. Under FedBN normalisation layers stay at the site too (client_agent.architectures.statistics).

Source: Roschewitz, Hartley, Corinzia, Jaggi 2021, iFedAvg
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import nn

from client_agent.architectures.statistics import kept_parameters

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
    layers = [module for module in model.modules() if isinstance(module, PersonalLayer)]
    return {id(parameter) for layer in layers for parameter in layer.parameters()} | kept_parameters(model)
