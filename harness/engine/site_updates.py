"""What one site computes for a round: its clipped update, its own weight, its class counts; the requester's probe."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.flat_vector import ModelParts, Vector, layer_sizes
from client_agent.learning.plugin import Plugin, assessor, site_loss
from client_agent.learning.private.private_round import private_round
from client_agent.learning.trainer import loss_gradient, train_round
from client_agent.learning.training_seeds import site_seed
from harness.datasets.site_data import SiteData
from protocol.arithmetic.fixed_point import check_finite, clip
from protocol.arithmetic.prg import derive
from protocol.rules.self_weights import class_weight, sample_weight
from protocol.wire.messages import RuleName, Study

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class ClippedUpdate:
    """A site's update after clipping, float64[D], and whether it had been longer.

    ``own_weight`` is the weight that the site gives itself, None where the weight list says it. ``personal`` are its
    personal layers after the round, float32[P], which it keeps.
    """

    values: NDArray[np.float64] = field(repr=False)
    was_clipped: bool
    own_weight: float | None = None
    personal: Vector = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)

    @property
    def norm(self) -> float:
        """||g|| after clipping."""
        return float(np.sqrt(squared_norm(self.values)))

    def weight(self, listed: float) -> float:
        """The site's own weight, or the listed one."""
        return listed if self.own_weight is None else self.own_weight

    def shared(self, clip_norm: float) -> NDArray[np.float64]:
        """What the site shares before the list's weight: g, or (w g, w C) where it weighs itself."""
        if self.own_weight is None:
            return self.values
        return np.append(self.own_weight * self.values, self.own_weight * clip_norm)


@dataclass(frozen=True, eq=False)
class Training:
    """With what a site trains; ``model`` is the run's one module, into which each site loads its own values."""

    study: Study
    model: nn.Module
    device: torch.device = CPU
    plugin: Plugin | None = None


def squared_norm(values: NDArray[np.float64]) -> float:
    """Sum of squares in float64."""
    return float(np.sum(np.square(values)))


def clipped_update(
    training: Training,
    site: SiteData,
    vector: Vector,
    round_number: int,
    own_weight: float | None = None,
    personal: Vector | None = None,
) -> ClippedUpdate:
    """The site's update of a round from the model ``vector``, float32[D], and its ``personal`` layers, float32[P].

    In a study with ``privacy`` the noise is drawn from the run's seed, so that runs can be repeated; a site's agent
    draws it from its system.

    Raises: UnusableUpdate
    """
    study, model = training.study, training.model
    load_site(model, vector, personal)
    seed = site_seed(study.seed or 0, site.name)
    loss = site_loss(study, training.plugin, site.train.y)
    if study.record_noise is not None:
        update = private_round(
            model,
            site.train,
            study.training,
            study.record_noise,
            round=round_number,
            seed=derive(seed.to_bytes(32, "big"), f"noise of round {round_number}"),
            device=training.device,
            loss=loss,
        )
        return clipped(study, update, own_weight, np.zeros(0, np.float32))
    trained = train_round(
        model, site.train, study.training, round=round_number, seed=seed, device=training.device, loss=loss
    )
    return clipped(study, trained.update, own_weight, trained.personal)


def clipped(study: Study, update: Vector, own_weight: float | None, personal: Vector) -> ClippedUpdate:
    """A trained update, float32[D], as its site goes on with it. Raises: UnusableUpdate"""
    check_finite(update, layer_sizes(study.model.layers))
    values, was_clipped = clip(update, study.parameters.clip_norm)
    return ClippedUpdate(values, was_clipped, own_weight, personal)


def load_site(model: nn.Module, vector: Vector, personal: Vector | None) -> None:
    """The shared layers, and the site's own ones; None leaves those as they are."""
    ModelParts.of(model).load(vector, personal)


def clipped_probe(
    training: Training, requester: SiteData, vector: Vector, personal: Vector | None = None
) -> NDArray[np.float64]:
    """The gradient of the requester's validation loss at the model ``vector``, clipped like an update, float64[D].

    Raises: ConfigurationError without validation examples; UnusableUpdate
    """
    study, model = training.study, training.model
    load_site(model, vector, personal)
    raw = loss_gradient(model, requester.validation, CPU, assessor(study, training.plugin, CPU).loss)
    check_finite(raw, layer_sizes(study.model.layers))
    return clip(raw, study.parameters.clip_norm)[0]


def class_counts(site: SiteData, classes: int) -> tuple[int, ...]:
    """The site's training examples of each class."""
    return tuple(int(count) for count in np.bincount(site.train.y, minlength=classes))


def own_weight(study: Study, site: SiteData, totals: tuple[int, ...], largest_count: int) -> float | None:
    """The weight that a site gives itself; None for rules whose weights the requester hands out.

    ``totals`` are the summed class counts, ``largest_count`` the number of samples of weight 1.

    Raises: ConfigurationError when no site has a class
    """
    grid = study.parameters.weight_grid
    if study.rule.name is RuleName.FEDAVG_BY_SAMPLES:
        return sample_weight(len(site.train), largest_count, grid)
    if study.rule.name is RuleName.WFEDAVG:
        return class_weight(class_counts(site, study.model.classes), totals, grid)
    return None
