"""One site's part of a round under algorithms of the literature, one class each.

Sites average their updates as in FedAvg; here is what differs: the steps, what a site keeps from round to round, and
the model that it uses. Steps are plain, without momentum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, has_statistics, personal_parameters
from client_agent.learning.losses import Loss
from client_agent.learning.trainer import epoch_rows, gradients, private_randomness, rate_factor, take
from host.frozen import Frozen
from protocol.errors import ConfigurationError
from protocol.messages.control import TrainingSpec

Rows = NDArray[np.int64]
_CPU: Final = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Kept:
    """A site's state between rounds: a vector of its own, float32[D] or empty, and APFL's mixing weight."""

    own: Vector = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)
    mixing: float = 0.0


@dataclass(frozen=True, eq=False)
class LocalProblem:
    """A site's loss and its mini-batches of a round; ``model`` is a tool that any values are loaded into."""

    model: nn.Module
    data: Examples
    training: TrainingSpec
    loss: Loss
    round: int
    seed: int

    @property
    def factor(self) -> float:
        return rate_factor(self.training, self.round)

    @property
    def rate(self) -> float:
        return self.training.local_learning_rate * self.factor

    def batches(self) -> Iterator[Rows]:
        """Yield the rows of every mini-batch, those of FedAvg; what a model draws meanwhile comes from the seed."""
        self.model.train()
        with private_randomness(self.seed, f"round {self.round}", _CPU):
            yield from epoch_rows(len(self.data), self.training, self.round, self.seed)

    def slope(self, values: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Return the gradient of the loss over a mini-batch at these parameters, float32[D]."""
        parameters = list(self.model.parameters())
        nn.utils.vector_to_parameters(values, parameters)
        parts = gradients(self.model, parameters, take(self.data, rows, _CPU), self.loss)
        return torch.cat([part.reshape(-1) for part in parts]).detach()


def require_plain_steps(model: nn.Module, training: TrainingSpec, name: str) -> None:
    """ConfigurationError for a model or settings that these papers do not define."""
    personal = [layer for layer, _ in personal_parameters(model)]
    if personal:
        raise ConfigurationError(
            f"{name} takes no model with personal layers, found {', '.join(personal)}; leave 'personal' out of the "
            "variant's model"
        )
    if training.update != "local_sgd" or training.momentum or training.l2:
        raise ConfigurationError(
            f"{name} takes local SGD without momentum and l2, found update={training.update!r}, "
            f"momentum={training.momentum}, l2={training.l2}"
        )


def require_no_statistics(model: nn.Module, name: str) -> None:
    """ConfigurationError for batch norm, whose statistics no step moves."""
    if has_statistics(model):
        raise ConfigurationError(f"{name} takes no model with batch norm: use GroupNorm, or rule 'fedavg'")


class _Table(Frozen, strict=True):
    """An algorithm; unless it says otherwise, its sites keep nothing and use the shared model.

    ``keeps_common``: the mean of all sites' own vectors is known to everybody.
    """

    keeps_common: ClassVar[bool] = False

    def first(self, shared: Vector) -> Kept:
        """Return what a site keeps before round 1, from the first model."""
        return Kept()

    def train(self, problem: LocalProblem, shared: Vector, kept: Kept, common: Vector) -> tuple[Vector, Kept]:
        """Return the sum of the steps on the shared model, float32[D], as FedAvg's update, and what the site keeps."""
        raise NotImplementedError

    def used(self, shared: Vector, kept: Kept) -> Vector:
        """Return the model that the site uses, float32[D]."""
        return shared


class _Personal(_Table):
    """An algorithm whose sites keep a model of their own and use it."""

    def first(self, shared: Vector) -> Kept:
        return Kept(shared.copy())

    def used(self, shared: Vector, kept: Kept) -> Vector:
        return kept.own


class FedProx(_Table):
    """A site's steps are drawn back to the model that it received; with ``mu`` = 0 it is FedAvg.

        w <- w - lr (grad f(w) + mu (w - w_t))        over the round's mini-batches, from w = w_t

    Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020, Federated Optimization in Heterogeneous Networks,
            Algorithm 2
    """

    name: Literal["fedprox"]
    mu: Annotated[float, Field(ge=0)] = 0.01

    def train(self, problem: LocalProblem, shared: Vector, kept: Kept, common: Vector) -> tuple[Vector, Kept]:
        received, w = _tensor(shared), _tensor(shared)
        total = torch.zeros_like(w)
        for rows in problem.batches():
            step = problem.slope(w, rows) + self.mu * (w - received)
            total.add_(step, alpha=problem.factor)
            w = w - problem.rate * step
        return total.numpy(), kept


class Scaffold(_Table):
    """Control variates take out of a site's steps what is its own; a site keeps c_i, the common vector is c.

        y <- y - lr (grad f(y) - c_i + c)             over the round's K mini-batches, from y = x
        c_i+ = c_i - c + (x - y) / (K lr)             option II
        x <- x + lr_g mean of (y_i - x);  c <- c + sum over those present of (c_i+ - c_i) / N

    All controls begin at 0; N counts all sites. lr_g is the server learning rate over the local one.

    Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2020, SCAFFOLD, Algorithm 1
    """

    keeps_common: ClassVar[bool] = True
    name: Literal["scaffold"]

    def first(self, shared: Vector) -> Kept:
        return Kept(np.zeros_like(shared))

    def train(self, problem: LocalProblem, shared: Vector, kept: Kept, common: Vector) -> tuple[Vector, Kept]:
        y, own, all_of = _tensor(shared), _tensor(kept.own), _tensor(common)
        steps, taken = torch.zeros_like(y), 0
        for rows in problem.batches():
            step = problem.slope(y, rows) - own + all_of
            steps, taken = steps + step, taken + 1
            y = y - problem.rate * step
        control = own - all_of + steps / taken  # (x - y) / (K lr) is the mean step
        return (problem.factor * steps).numpy(), Kept(control.numpy())


class Ditto(_Personal):
    """Beside the shared model of FedAvg every site has one of its own, drawn to the shared one by ``pull``, lambda.

        shared     w <- w - lr grad f(w)                         its steps are the update, as in FedAvg
        personal   v <- v - lr (grad f(v) + lambda (v - w_t))    on the same mini-batches; never leaves the site

    w_t is the shared model at the beginning of the round; v begins as the first model. A site uses v.

    Source: Li, Hu, Beirami, Smith 2021, Ditto: Fair and Robust Federated Learning Through Personalization, Algorithm 1
    """

    name: Literal["ditto"]
    pull: Annotated[float, Field(ge=0)] = 0.1

    def train(self, problem: LocalProblem, shared: Vector, kept: Kept, common: Vector) -> tuple[Vector, Kept]:
        received, w, v = _tensor(shared), _tensor(shared), _tensor(kept.own)
        total = torch.zeros_like(w)
        for rows in problem.batches():
            step = problem.slope(w, rows)
            own_step = problem.slope(v, rows) + self.pull * (v - received)
            total.add_(step, alpha=problem.factor)
            w, v = w - problem.rate * step, v - problem.rate * own_step
        return total.numpy(), Kept(v.numpy())


class PFedMe(_Personal):
    """The shared model follows the sites' Moreau envelopes; a site uses the minimiser theta of its last mini-batch.

        theta = argmin of f(theta; batch) + lambda / 2 ||theta - w||^2     approximately: gradient steps, from theta = w
        w <- w - lr lambda (w - theta)                                     over the round's mini-batches, from w = w_t
        w_(t+1) = (1 - beta) w_t + beta mean of w_i

    ``pull`` is lambda; ``steps`` gradient steps of length ``personal_rate`` stand for the paper's accuracy nu. beta is
    the server learning rate over the local one.

    Source: T. Dinh, Tran, Nguyen 2020, Personalized Federated Learning with Moreau Envelopes, Algorithm 1
    """

    name: Literal["pfedme"]
    pull: Annotated[float, Field(gt=0)] = 15.0
    steps: Annotated[int, Field(ge=1)] = 5
    personal_rate: Annotated[float, Field(gt=0)] = 0.01

    def train(self, problem: LocalProblem, shared: Vector, kept: Kept, common: Vector) -> tuple[Vector, Kept]:
        w = _tensor(shared)
        theta, total = w, torch.zeros_like(w)
        for rows in problem.batches():
            theta = self._minimiser(problem, w, rows)
            step = self.pull * (w - theta)
            total.add_(step, alpha=problem.factor)
            w = w - problem.rate * step
        return total.numpy(), Kept(theta.numpy())

    def _minimiser(self, problem: LocalProblem, w: torch.Tensor, rows: Rows) -> torch.Tensor:
        theta = w
        for _ in range(self.steps):
            theta = theta - self.personal_rate * (problem.slope(theta, rows) + self.pull * (theta - w))
        return theta


class Apfl(_Personal):
    """Every site mixes the shared model w with a model v of its own, v_bar = a v + (1 - a) w, and uses v_bar.

        shared     w <- w - lr grad f(w)                           its steps are summed: the update, as in FedAvg
        own        v <- v - lr a grad f(v_bar)                     never leaves the site
        mixing     a <- a - lr <v - w, grad f(v_bar)>, in [0, 1]   adaptive; once per round, at its first batch

    Both models start at the same values and take the same batches; ``mixing`` is the first a.

    Source: Deng, Kamani, Mahdavi 2020, Adaptive Personalized Federated Learning, Algorithm 1
    """

    name: Literal["apfl"]
    mixing: Annotated[float, Field(ge=0, le=1)] = 0.5
    adaptive: bool = True

    def first(self, shared: Vector) -> Kept:
        return Kept(shared.copy(), self.mixing)

    def train(self, problem: LocalProblem, shared: Vector, kept: Kept, common: Vector) -> tuple[Vector, Kept]:
        w, v = _tensor(shared), _tensor(kept.own)
        total, mixing = torch.zeros_like(w), kept.mixing
        for number, rows in enumerate(problem.batches()):
            step = problem.slope(w, rows)
            mixed_step = problem.slope(torch.lerp(w, v, mixing), rows)
            if self.adaptive and number == 0:
                slope = float(torch.sum((v - w) * mixed_step))
                mixing = min(1.0, max(0.0, mixing - problem.rate * slope))
            v = v - problem.rate * mixing * mixed_step
            w = w - problem.rate * step
            total.add_(step, alpha=problem.factor)
        return total.numpy(), Kept(v.numpy(), mixing)

    def used(self, shared: Vector, kept: Kept) -> Vector:
        weight = np.float32(kept.mixing)
        mixed: Vector = (weight * kept.own + (np.float32(1) - weight) * shared).astype(np.float32)
        return mixed


BaselineTable: TypeAlias = Annotated[FedProx | Scaffold | Ditto | PFedMe | Apfl, Field(discriminator="name")]
"""``[variant.baseline]``: the algorithm that takes FedAvg's place, with its numbers."""


def _tensor(vector: Vector) -> torch.Tensor:
    return torch.from_numpy(vector.copy())
