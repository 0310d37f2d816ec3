"""Records whose gradients come nearest to an opened average, by descent: the attacker knows model, labels and number.

Tables: the squared distance to the average over its squared length (DLG). Images: the angle between both, and total
variation (Inverting Gradients). Signed Adam steps that shrink twice on the way; few of them, so that it runs on a CPU:
an attacker with a GPU and many restarts does better where this one is not already exact.

Source: Zhu, Liu, Han 2019; Geiping et al. 2020
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.personal import shared_parameters

Reals = NDArray[np.float64]
_RATE: Final = 0.1
_SHRINK: Final = ((0.5, 0.1), (0.8, 0.01))
"""From these parts of the steps on the rate is so much of the first."""
_TINY: Final = 1e-12


@dataclass(frozen=True)
class Descent:
    """``variation``: how much total variation counts, 0 for tables, which take the distance and not the angle."""

    steps: int
    variation: float = 0.0

    def records(
        self, model: nn.Module, gradient: Reals, labels: NDArray[np.int64], shape: tuple[int, ...], seed: int
    ) -> Reals:
        """As many records as there are labels, from standard normal ones, float64[n, inputs].

        Shapes:   gradient float64[D], the mean over the labels' records
        """
        drawn = torch.Generator().manual_seed(seed)
        found = torch.randn((len(labels), *shape), generator=drawn).requires_grad_(True)
        target, y = torch.from_numpy(gradient.astype(np.float32)), torch.from_numpy(labels)
        optimiser = torch.optim.Adam([found], lr=_RATE)
        milestones = [round(part * self.steps) for part, _ in _SHRINK]
        model.eval()
        for step in range(self.steps):
            for milestone, (_, factor) in zip(milestones, _SHRINK, strict=True):
                if step == milestone:
                    optimiser.param_groups[0]["lr"] = _RATE * factor
            (downhill,) = torch.autograd.grad(self._apart(model, found, y, target), found)
            found.grad = downhill.sign()
            optimiser.step()
        return found.detach().flatten(1).numpy().astype(np.float64)

    def _apart(self, model: nn.Module, found: torch.Tensor, y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(found), y)
        parameters = [parameter for _, parameter in shared_parameters(model)]
        parts = torch.autograd.grad(loss, parameters, create_graph=True)
        made = torch.cat([part.reshape(-1) for part in parts])
        if not self.variation:
            apart: torch.Tensor = ((made - target) ** 2).sum() / (target**2).sum().clamp_min(_TINY)
            return apart
        lengths = (made.norm() * target.norm()).clamp_min(_TINY)
        angle: torch.Tensor = 1 - (made * target).sum() / lengths
        return angle + self.variation * _variation(found)


def _variation(images: torch.Tensor) -> torch.Tensor:
    """Mean absolute difference of neighbouring pixels; flat inputs are square images."""
    side = round((images[0].numel()) ** 0.5)
    square = images.reshape(len(images), side, side)
    down, across = square[:, 1:] - square[:, :-1], square[:, :, 1:] - square[:, :, :-1]
    return down.abs().mean() + across.abs().mean()
