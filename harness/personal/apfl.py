"""APFL: every site mixes the shared model w with a model v of its own, v_bar = a v + (1 - a) w.

    shared     w <- w - lr grad f(w)                           its steps are summed: the update, as in FedAvg
    own        v <- v - lr a grad f(v_bar)                     never leaves the site
    mixing     a <- a - lr <v - w, grad f(v_bar)>, in [0, 1]   adaptive; once per round, at its first batch

Both models start at the same values and take the same batches. Steps are plain, without momentum.

Source: Deng, Kamani, Mahdavi 2020, Adaptive Personalized Federated Learning, Algorithm 1
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from client_agent.learning.data import Examples
from client_agent.learning.flat_vector import Vector, flat_vector, load_vector
from client_agent.learning.personal import personal_parameters
from client_agent.learning.trainer import epoch_rows, gradients, private_randomness, rate_factor, take
from client_agent.tasks.losses import Batch, Loss, training_loss
from protocol.errors import ConfigurationError
from protocol.wire.messages import TrainingSpec


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
