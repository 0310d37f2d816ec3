"""One site's part of a round under algorithms of the literature.

    shared     w <- w - lr grad f(w)                         its steps are the update, as in FedAvg
    personal   v <- v - lr (grad f(v) + lambda (v - w_t))    on the same mini-batches; never leaves the site

w_t is the shared model at the beginning of the round; v begins as the first model. A site uses v.

Source: Li, Hu, Beirami, Smith 2021, Ditto: Fair and Robust Federated Learning Through Personalization, Algorithm 1

    w <- w - lr (grad f(w) + mu (w - w_t))        over the round's mini-batches, from w = w_t

With mu = 0 it is FedAvg.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020, Federated Optimization in Heterogeneous Networks, Algorithm 2

    theta = argmin of f(theta; batch) + lambda / 2 ||theta - w||^2     approximately: gradient steps, from theta = w
    w <- w - lr lambda (w - theta)                                     over the round's mini-batches, from w = w_t
    w_(t+1) = (1 - beta) w_t + beta mean of w_i

beta is the server learning rate over the local one. A site uses the theta of its last mini-batch of the round.

Source: T. Dinh, Tran, Nguyen 2020, Personalized Federated Learning with Moreau Envelopes, Algorithm 1

    y <- y - lr (grad f(y) - c_i + c)             over the round's K mini-batches, from y = x
    c_i+ = c_i - c + (x - y) / (K lr)             option II
    x <- x + lr_g mean of (y_i - x);  c <- c + sum over those present of (c_i+ - c_i) / N

All controls begin at 0; N counts all sites. lr_g is the server learning rate over the local one.

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2020, SCAFFOLD, Algorithm 1

    shared     w <- w - lr grad f(w)                           its steps are summed: the update, as in FedAvg
    own        v <- v - lr a grad f(v_bar)                     never leaves the site
    mixing     a <- a - lr <v - w, grad f(v_bar)>, in [0, 1]   adaptive; once per round, at its first batch

Both models start at the same values and take the same batches. Steps are plain, without momentum.

Source: Deng, Kamani, Mahdavi 2020, Adaptive Personalized Federated Learning, Algorithm 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from client_agent.architectures.statistics import has_statistics
from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, flat_vector, load_vector
from client_agent.learning.personal import personal_parameters
from client_agent.learning.trainer import epoch_rows, gradients, private_randomness, rate_factor, take
from client_agent.tasks.losses import Batch, Loss, training_loss
from protocol.errors import ConfigurationError
from protocol.wire.messages import TrainingSpec


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FedProxTable(_Table):
    """``mu``: how strongly a site's model is drawn to the one it received."""

    name: Literal["fedprox"]
    mu: Annotated[float, Field(ge=0)] = 0.01


class ScaffoldTable(_Table):
    """No numbers of its own."""

    name: Literal["scaffold"]


class DittoTable(_Table):
    """``pull``: the paper's lambda, how strongly the personal model is drawn to the shared one."""

    name: Literal["ditto"]
    pull: Annotated[float, Field(ge=0)] = 0.1


class PFedMeTable(_Table):
    """``pull``: the paper's lambda; ``steps`` of length ``personal_rate`` towards the personal model, a mini-batch."""

    name: Literal["pfedme"]
    pull: Annotated[float, Field(gt=0)] = 15.0
    steps: Annotated[int, Field(ge=1)] = 5
    personal_rate: Annotated[float, Field(gt=0)] = 0.01


BaselineTable: TypeAlias = Annotated[
    FedProxTable | ScaffoldTable | DittoTable | PFedMeTable, Field(discriminator="name")
]


Rows = NDArray[np.int64]
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class SiteRound:
    """``update``: the sum of the steps on the shared model, float32[D], as FedAvg's update. ``memory``: what the site
    keeps, float32[D] or empty. ``personal``: the model it uses, float32[D], where the algorithm has one.
    """

    update: Vector = field(repr=False)
    memory: Vector = field(repr=False)
    personal: Vector | None = field(default=None, repr=False)


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
        """What a decaying learning rate is multiplied by in this round."""
        return rate_factor(self.training, self.round)

    @property
    def rate(self) -> float:
        """The local learning rate of this round."""
        return self.training.local_learning_rate * self.factor

    def batches(self) -> Iterator[Rows]:
        """The rows of every mini-batch, those of FedAvg; what a model draws meanwhile comes from the seed."""
        self.model.train()
        with private_randomness(self.seed, f"round {self.round}", CPU):
            yield from epoch_rows(len(self.data), self.training, self.round, self.seed)

    def slope(self, values: torch.Tensor, rows: Rows) -> torch.Tensor:
        """The gradient of the loss over a mini-batch at these parameters, float32[D]."""
        parameters = list(self.model.parameters())
        nn.utils.vector_to_parameters(values, parameters)
        parts = gradients(self.model, parameters, take(self.data, rows, CPU), self.loss)
        return torch.cat([part.reshape(-1) for part in parts]).detach()


class Baseline(Protocol):
    """An algorithm. ``personal``: sites use models of their own. ``keeps_common``: the sum of the sites' memories,
    over the number of all sites, is known to everybody.
    """

    personal: bool
    keeps_common: bool

    def first_memory(self, first: Vector) -> Vector:
        """What a site keeps before round 1, from the first model."""
        ...

    def train(self, problem: LocalProblem, shared: Vector, memory: Vector, common: Vector) -> SiteRound:
        """One site's round from the shared model, float32[D]."""
        ...


def require_plain_steps(model: nn.Module, training: TrainingSpec, name: str) -> None:
    """ConfigurationError for a model or settings that these papers do not define."""
    personal = [layer for layer, _ in personal_parameters(model)]
    if personal:
        raise ConfigurationError(f"{name} takes no model with personal layers, found {', '.join(personal)}")
    if has_statistics(model):
        raise ConfigurationError(f"{name} takes no model with batch norm: use GroupNorm, or rule 'fedavg'")
    if training.update != "local_sgd" or training.momentum or training.l2:
        raise ConfigurationError(
            f"{name} takes local SGD without momentum and l2, found update={training.update!r}, "
            f"momentum={training.momentum}, l2={training.l2}"
        )


def tensor(vector: Vector) -> torch.Tensor:
    """A copy that steps may change."""
    return torch.from_numpy(vector.copy())


def nothing() -> Vector:
    """The memory of an algorithm that keeps none."""
    return np.zeros(0, np.float32)


@dataclass(frozen=True)
class Ditto:
    """A site's memory is its personal model."""

    pull: float
    personal = True
    keeps_common = False

    def first_memory(self, first: Vector) -> Vector:
        return first.copy()

    def train(self, problem: LocalProblem, shared: Vector, memory: Vector, common: Vector) -> SiteRound:
        received, w, v = tensor(shared), tensor(shared), tensor(memory)
        total = torch.zeros_like(w)
        for rows in problem.batches():
            step = problem.slope(w, rows)
            own_step = problem.slope(v, rows) + self.pull * (v - received)
            total.add_(step, alpha=problem.factor)
            w, v = w - problem.rate * step, v - problem.rate * own_step
        return SiteRound(total.numpy(), v.numpy(), v.numpy())


@dataclass(frozen=True)
class FedProx:
    """The proximal term is added to every mini-batch's gradient."""

    mu: float
    personal = False
    keeps_common = False

    def first_memory(self, first: Vector) -> Vector:
        return nothing()

    def train(self, problem: LocalProblem, shared: Vector, memory: Vector, common: Vector) -> SiteRound:
        received, w = tensor(shared), tensor(shared)
        total = torch.zeros_like(w)
        for rows in problem.batches():
            step = problem.slope(w, rows) + self.mu * (w - received)
            total.add_(step, alpha=problem.factor)
            w = w - problem.rate * step
        return SiteRound(total.numpy(), nothing())


@dataclass(frozen=True)
class PFedMe:
    """``steps`` gradient steps of length ``personal_rate`` stand for the paper's accuracy nu."""

    pull: float
    steps: int
    personal_rate: float
    personal = True
    keeps_common = False

    def first_memory(self, first: Vector) -> Vector:
        return nothing()

    def train(self, problem: LocalProblem, shared: Vector, memory: Vector, common: Vector) -> SiteRound:
        w = tensor(shared)
        theta, total = w, torch.zeros_like(w)
        for rows in problem.batches():
            theta = self._minimiser(problem, w, rows)
            step = self.pull * (w - theta)
            total.add_(step, alpha=problem.factor)
            w = w - problem.rate * step
        return SiteRound(total.numpy(), nothing(), theta.numpy())

    def _minimiser(self, problem: LocalProblem, w: torch.Tensor, rows: Rows) -> torch.Tensor:
        theta = w
        for _ in range(self.steps):
            theta = theta - self.personal_rate * (problem.slope(theta, rows) + self.pull * (theta - w))
        return theta


@dataclass(frozen=True)
class Scaffold:
    """A site's memory is c_i, the common one c."""

    personal = False
    keeps_common = True

    def first_memory(self, first: Vector) -> Vector:
        return np.zeros_like(first)

    def train(self, problem: LocalProblem, shared: Vector, memory: Vector, common: Vector) -> SiteRound:
        y, own, all_of = tensor(shared), tensor(memory), tensor(common)
        steps, taken = torch.zeros_like(y), 0
        for rows in problem.batches():
            step = problem.slope(y, rows) - own + all_of
            steps, taken = steps + step, taken + 1
            y = y - problem.rate * step
        control = own - all_of + steps / taken  # (x - y) / (K lr) is the mean step
        return SiteRound((problem.factor * steps).numpy(), control.numpy())


@dataclass(frozen=True, eq=False)
class MixedSite:
    """What a site keeps: its own model v, float32[D], and the mixing weight a in [0, 1]."""

    own: Vector = field(repr=False)
    mixing: float

    def mixed(self, shared: Vector) -> Vector:
        """v_bar, the model that the site uses."""
        weight = np.float32(self.mixing)
        return (weight * self.own + (np.float32(1) - weight) * shared).astype(np.float32)


def require_apfl(model: nn.Module, training: TrainingSpec) -> None:
    """ConfigurationError for a model or settings that APFL does not define."""
    personal = [name for name, _ in personal_parameters(model)]
    if personal:
        raise ConfigurationError(
            f"APFL mixes whole models and takes none with personal layers, found {', '.join(personal)}; "
            "leave 'personal' out of the variant's model"
        )
    if training.update != "local_sgd" or training.momentum or training.l2:
        raise ConfigurationError(
            "APFL takes local SGD without momentum and l2, found "
            f"update={training.update!r}, momentum={training.momentum}, l2={training.l2}"
        )


@dataclass(frozen=True, eq=False)
class MixedTraining:
    """How every site trains; ``model`` is a tool that any site's values are loaded into."""

    model: nn.Module
    training: TrainingSpec
    adaptive: bool
    device: torch.device

    def train(
        self, data: Examples, shared: Vector, site: MixedSite, *, round: int, seed: int
    ) -> tuple[Vector, MixedSite]:
        """One round: the update of the shared model, float32[D], and what the site keeps.

        Raises: ConfigurationError for a model or training settings that APFL does not define
        """
        require_apfl(self.model, self.training)
        loss, factor = training_loss(self.training, data.y), rate_factor(self.training, round)
        networks = _Networks(self.model.to(self.device).train(), loss, shared, site)
        totals = [torch.zeros_like(w) for w in networks.w]
        rate = self.training.local_learning_rate * factor
        with private_randomness(seed, f"round {round}", self.device):
            for number, rows in enumerate(epoch_rows(len(data), self.training, round, seed)):
                steps = networks.step(take(data, rows, self.device), rate, adaptive=self.adaptive and number == 0)
                for total, step in zip(totals, steps, strict=True):
                    total.add_(step, alpha=factor)
        return flat_vector(totals), networks.kept()


class _Networks:
    """The parameters of a site's three models in a round: w, v and their mixture."""

    def __init__(self, model: nn.Module, loss: Loss, shared: Vector, site: MixedSite) -> None:
        own, mixture = deepcopy(model), deepcopy(model)
        load_vector(model, shared)
        load_vector(own, site.own)
        self._shared_model, self._mixed_model, self._loss = model, mixture, loss
        self.w, self._v, self._mixture = (list(m.parameters()) for m in (model, own, mixture))
        self._mixing = site.mixing

    def step(self, batch: Batch, rate: float, *, adaptive: bool) -> Sequence[torch.Tensor]:
        """Step w and v; the gradient of w comes back."""
        shared_step = gradients(self._shared_model, self.w, batch, self._loss)
        with torch.no_grad():
            for m, v, w in zip(self._mixture, self._v, self.w, strict=True):
                m.copy_(torch.lerp(w, v, self._mixing))
        mixed_step = gradients(self._mixed_model, self._mixture, batch, self._loss)
        with torch.no_grad():
            if adaptive:
                self._adapt(mixed_step, rate)
            for v, step in zip(self._v, mixed_step, strict=True):
                v.sub_(step, alpha=rate * self._mixing)
            for w, step in zip(self.w, shared_step, strict=True):
                w.sub_(step, alpha=rate)
        return shared_step

    def kept(self) -> MixedSite:
        return MixedSite(flat_vector([v.detach() for v in self._v]), self._mixing)

    def _adapt(self, mixed_step: Sequence[torch.Tensor], rate: float) -> None:
        pairs = zip(self._v, self.w, mixed_step, strict=True)
        slope = sum(float(torch.sum((v - w) * step)) for v, w, step in pairs)
        self._mixing = min(1.0, max(0.0, self._mixing - rate * slope))
