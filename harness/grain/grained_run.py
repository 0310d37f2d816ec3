"""A case's study in plain numbers, by one choice of grain: who weighs what in which layer, and in which metric."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import nn

from client_agent.learning.at_requester.update_noise import half_differences
from client_agent.learning.evaluation import evaluate
from client_agent.learning.flat_vector import load_vector, model_vector
from client_agent.learning.models import build_model
from client_agent.learning.plugin import site_loss
from client_agent.learning.training_seeds import site_seed
from harness.datasets.registry import load_data
from harness.datasets.site_data import SiteData
from harness.engine.site_updates import CPU, Training, clipped_update
from harness.grain.blocks import Block, Means, Reals, averaged, block_a_layer, one_block, sampled_noise
from harness.simulation.case import Case
from harness.simulation.case_run import request_for
from harness.simulation.simulated_study import simulated_study
from harness.versions import versions
from protocol.policy.list_terms import list_terms
from protocol.wire.messages import Study

MEASURE_EVERY: Final = 10
BIAS_FACTOR: Final = 2.0
_LEAST_SCALE: Final = 1e-3


class Grain(StrEnum):
    """LOCAL and FEDAVG have fixed weights; MODEL is the rule as it is, LAYERS gives each layer weights of its own;
    SCALED ones measure in units of the noise of every coordinate, at the requester.
    """

    LOCAL = "local"
    FEDAVG = "fedavg"
    MODEL = "model"
    LAYERS = "layers"
    MODEL_SCALED = "model_scaled"
    LAYERS_SCALED = "layers_scaled"

    @property
    def by_layer(self) -> bool:
        return self in (Grain.LAYERS, Grain.LAYERS_SCALED)

    @property
    def scaled(self) -> bool:
        return self in (Grain.MODEL_SCALED, Grain.LAYERS_SCALED)


class GrainLine(BaseModel):
    """One run. ``log_loss`` of the requester's test part after every round; ``own_weight`` the requester's in the mean
    of the blocks, weighed by their sizes, after the last measured round.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    study: str
    grain: Grain
    requester: str
    seed: int
    blocks: dict[str, int]
    own_weight: float
    accuracy: float
    log_loss: tuple[float, ...]
    seconds: float
    versions: dict[str, str]


@dataclass(eq=False)
class GrainedRun:
    """The first of the case's sites is the requester; all take part in every round."""

    case: Case
    grain: Grain
    seed: int
    data: Path | None = None
    _numbers: int = field(default=0, init=False)

    def line(self) -> GrainLine:
        """Run. Raises: ConfigurationError for data or settings that do not fit"""
        begun, threads = time.monotonic(), torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._line(begun)
        finally:
            torch.set_num_threads(threads)

    def _line(self, begun: float) -> GrainLine:
        federation = load_data(request_for(self.case, self.data, None, self.seed))
        table = self.case.variant("fedavg").study
        study = simulated_study(table, self.case.source, federation, self.seed)
        model = build_model(study.model, self.seed)
        layers = study.model.layers
        blocks = block_a_layer(layers) if self.grain.by_layer else one_block(layers)
        weights, losses, accuracy = self._weights(federation.sites, blocks), [], 0.0
        vector = model_vector(model)
        means = Means(np.zeros((len(blocks), len(federation.sites) - 1, len(federation.sites) - 1)))
        for number in range(study.rounds):
            if self._measures and number % MEASURE_EVERY == 0:
                means, weights = self._measured(study, federation.sites, model, vector, blocks, means)
            updates = self._updates(study, federation.sites, model, vector)
            step = averaged(blocks, weights, updates)
            vector = (vector - study.training.server_learning_rate * step).astype(np.float32)
            load_vector(model, vector)
            found = evaluate(model, federation.requester.test, CPU)
            losses.append(round(found.loss, 6))
            accuracy = found.accuracy or 0.0
        sizes = np.array([block.size for block in blocks])
        own = float(np.average([1 - one.sum() for one in weights], weights=sizes))
        return GrainLine(
            study=self.case.name,
            grain=self.grain,
            requester=federation.requester.name,
            seed=self.seed,
            blocks={block.name: block.size for block in blocks},
            own_weight=round(own, 4),
            accuracy=accuracy,
            log_loss=tuple(losses),
            seconds=round(time.monotonic() - begun, 3),
            versions={one.name: one.version for one in versions()},
        )

    @property
    def _measures(self) -> bool:
        return self.grain not in (Grain.LOCAL, Grain.FEDAVG)

    def _weights(self, sites: tuple[SiteData, ...], blocks: tuple[Block, ...]) -> list[Reals]:
        """Before anything is measured, and for ever where nothing is."""
        others = len(sites) - 1
        each = 1 / len(sites) if self.grain is Grain.FEDAVG else 0.0
        return [np.full(others, each) for _ in blocks]

    def _updates(
        self, study: Study, sites: tuple[SiteData, ...], model: nn.Module, vector: NDArray[np.float32]
    ) -> Reals:
        """All sites' clipped updates, the requester's first, float64[n + 1, D]; alone, its own."""
        self._numbers += 1
        needed = sites[:1] if self.grain is Grain.LOCAL else sites
        training = Training(study, model)
        return np.stack([clipped_update(training, site, vector, self._numbers).values for site in needed])

    def _measured(
        self,
        study: Study,
        sites: tuple[SiteData, ...],
        model: nn.Module,
        vector: NDArray[np.float32],
        blocks: tuple[Block, ...],
        means: Means,
    ) -> tuple[Means, list[Reals]]:
        """A round of its own: the means with it, and every block's weights."""
        updates = self._updates(study, sites, model, vector)
        variances = self._variances(study, sites[0], model, vector)
        offsets = updates[1:] - updates[0]
        if self.grain.scaled:
            scale = 1 / np.sqrt(np.maximum(variances, _LEAST_SCALE * variances.mean()))
            offsets, variances = offsets * scale, variances * scale**2
        means = means.with_round(blocks, offsets, variances)
        terms = list_terms(study, self.case.table.policy.policy(), len(sites[0].train))
        noise = sampled_noise(terms, {site.name: len(site.train) for site in sites[1:]})
        found = means.choices(noise, terms, study.parameters.weight_grid, BIAS_FACTOR)
        return means, [choice.weights() for choice in found]

    def _variances(self, study: Study, site: SiteData, model: nn.Module, vector: NDArray[np.float32]) -> Reals:
        """Of every coordinate of the requester's clipped update, from halves, float64[D]."""
        load_vector(model, vector)
        found = half_differences(
            model,
            site.train,
            study.training,
            self._numbers,
            site_seed(study.seed or 0, site.name),
            CPU,
            study.parameters.clip_norm,
            site_loss(study, None, site.train.y),
        )
        return np.asarray(np.mean(np.square(found), axis=0), dtype=np.float64)
