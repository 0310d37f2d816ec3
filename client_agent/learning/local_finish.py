"""The local finish: after the last shared round the requester moves its model on its own data, as far as these tell.

        min_x  F_0(x) + pull / 2 ||x - x_fed||^2            F_0 the mean loss on its training examples, with l2

Nothing leaves the requester, whatever the rule. The pull comes from examples that the shared rounds have not seen, or
for small models from the losses of all examples left out one by one, each approximated by one Newton step (Rad and
Maleki 2020); these the shared model has seen, so they look better for a strong pull than new ones would.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, personal_parameters, shared_parameters
from client_agent.learning.foreign_code import model_code
from client_agent.learning.losses import Batch, BuiltIn, Loss
from client_agent.learning.study_file import Finished
from protocol.errors import ConfigurationError, UnusableUpdate

PULLS: Final = tuple(float(pull) for pull in np.logspace(2, -4, 13))
"""Tried from the strongest; a weaker one has to be better. Before them comes the shared model as it is."""
_MOST_ENTRIES: Final = 2**26
_STEPS: Final = 300
_NO_NUMBER: Final = (
    "the local finish leaves the range of numbers: bring features to a common scale, or use the shared model as it is"
)


@dataclass(frozen=True, eq=False)
class LocalFinish:
    """A requester's model and loss; ``seen`` the shared rounds trained on, ``held`` they did not."""

    model: nn.Module
    loss: Loss
    l2: float
    seen: Examples
    held: Examples

    def run(self, shared: Vector) -> Finished:
        """Choose the pull, then finish on all examples. Raises: ConfigurationError, UnusableUpdate"""
        self.require_possible()
        was_training = self.model.training
        self.model.to("cpu").eval()
        try:
            start = torch.from_numpy(shared.astype(np.float64))
            pull = self._by_held_out(start) if len(self.held) else self._by_leaving_one_out(start)
            if pull is None:
                return Finished(shared, None, len(self.seen), len(self.held))
            ended = self._minimised(_joined(self.seen, self.held), start, pull)
        finally:
            self.model.train(was_training)
        return Finished(np.asarray(ended.numpy(), dtype=np.float32), pull, len(self.seen), len(self.held))

    def require_possible(self) -> None:
        """Require that this model and loss can be finished. Raises: ConfigurationError that says what to change"""
        if any(True for _ in personal_parameters(self.model)) or any(True for _ in self.model.buffers()):
            raise ConfigurationError(
                "key 'finish': it moves all of a model; take one without personal layers and buffers"
            )
        size = sum(parameter.numel() for _, parameter in shared_parameters(self.model))
        each = isinstance(self.loss, BuiltIn) and self.loss.each is not None
        if not len(self.held) and not (each and len(self.seen) * size**2 <= _MOST_ENTRIES):
            raise ConfigurationError(
                "key 'finish.choose': leave_one_out takes a small model and a loss that is a mean over examples; take "
                "held_out"
            )

    def _by_held_out(self, start: torch.Tensor) -> float | None:
        held = _batch(self.held)

        def tried(pull: float) -> float:
            return float(self._mean_loss(self._minimised(self.seen, start, pull), held).detach())

        return _best(float(self._mean_loss(start, held).detach()), tried)

    def _by_leaving_one_out(self, start: torch.Tensor) -> float | None:
        unmoved = float(self._mean_loss(start, _batch(self.seen)).detach())
        return _best(unmoved, lambda pull: self.left_out_loss(start, pull))

    def left_out_loss(self, start: torch.Tensor, pull: float) -> float:
        """The mean loss of every example under the model that the others alone would give, by one Newton step each.

        Shapes: start float64[D]
        """
        batch, n = _batch(self.seen), len(self.seen)

        def one(x: torch.Tensor, X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self._mean_loss(x, Batch(X.unsqueeze(0), y.unsqueeze(0)))

        x = self._minimised(self.seen, start, pull)
        gradients = vmap(grad(one), in_dims=(None, 0, 0))(x, batch.X, batch.y)
        curvatures = vmap(jacrev(grad(one)), in_dims=(None, 0, 0))(x, batch.X, batch.y)
        whole = curvatures.sum(dim=0) + n * (self.l2 + pull) * torch.eye(x.numel(), dtype=x.dtype)
        steps = torch.linalg.solve(whole - curvatures, gradients.unsqueeze(-1)).squeeze(-1)
        return float(vmap(one)(x + steps, batch.X, batch.y).mean())

    def _minimised(self, data: Examples, start: torch.Tensor, pull: float) -> torch.Tensor:
        """Minimise by L-BFGS over all examples, in float64. Raises: UnusableUpdate when it does not stay finite"""
        batch, x = _batch(data), start.clone().requires_grad_(True)
        search = torch.optim.LBFGS(
            [x], max_iter=_STEPS, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
        )

        def objective() -> float:
            search.zero_grad()
            value = self._mean_loss(x, batch) + self.l2 / 2 * x.square().sum() + pull / 2 * (x - start).square().sum()
            value.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            return float(value.detach())

        search.step(objective)  # type: ignore[no-untyped-call]  # torch has no types here
        if not bool(torch.isfinite(x).all()):
            raise UnusableUpdate(_NO_NUMBER)
        return x.detach()

    def _mean_loss(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        with model_code(self.model, "the loss of the local finish"):
            return self.loss(_Called(self.model, self._layers(x)), batch)

    def _layers(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """All of the model's parameters in float64, those of frozen layers as they are."""
        named = list(shared_parameters(self.model))
        pieces = torch.split(x, [parameter.numel() for _, parameter in named])
        frozen = {name: p.detach().to(x.dtype) for name, p in self.model.named_parameters() if not p.requires_grad}
        return frozen | {name: piece.reshape(p.shape) for (name, p), piece in zip(named, pieces, strict=True)}


class _Called(nn.Module):
    """The model with other parameters than its own."""

    def __init__(self, model: nn.Module, layers: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._parts = (model, layers)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        model, layers = self._parts
        answers: torch.Tensor = functional_call(model, layers, (X,))
        return answers


def _best(unmoved: float, tried: Callable[[float], float]) -> float | None:
    """The pull of least loss; None where no pull does better than the shared model. Raises: UnusableUpdate"""
    best, chosen = unmoved, None
    for pull in (None, *PULLS):
        found = unmoved if pull is None else tried(pull)
        if not math.isfinite(found):
            raise UnusableUpdate(_NO_NUMBER)
        if found < best:
            best, chosen = found, pull
    return chosen


def _batch(data: Examples) -> Batch:
    y: NDArray[np.generic] = data.y
    targets = y.astype(np.float64) if np.issubdtype(y.dtype, np.floating) else y
    return Batch(torch.from_numpy(data.X.astype(np.float64)), torch.from_numpy(targets))


def _joined(first: Examples, second: Examples) -> Examples:
    return Examples(np.concatenate([first.X, second.X]), np.concatenate([first.y, second.y]))
