"""Schemes in which all sites count alike and each uses a model: personal ones, and baselines in FedAvg's place.

averaged      one shared model, uniform average of the sites' updates: FedAvg; iFedAvg where the model has personal
              layers
mixed         an algorithm in which sites keep more than a model: APFL, and the baselines
alone         every site trains by itself
centralised   one model trained on the pooled data: what would be possible if data could be moved

Updates are clipped, averaged and applied as a study's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.flat_vector import (
    Vector,
    layer_sizes,
    load_personal,
    load_vector,
    model_vector,
    personal_vector,
)
from client_agent.learning.losses import training_loss
from client_agent.learning.sampling import site_seed
from client_agent.learning.trainer import apply_aggregate
from harness.datasets.site_data import SiteData
from harness.datasets.transforms import joined
from harness.engine.algorithms import (
    Algorithm,
    Apfl,
    BaselineTable,
    Kept,
    LocalProblem,
    require_no_statistics,
    require_plain_steps,
)
from harness.engine.history import RoundKind, RoundRecord
from harness.engine.run_state import EVERYBODY, Attendance, Run, RunState, round_record
from harness.engine.training import OneByOne, Scheme, SiteTraining, repeated
from harness.engine.updates import CPU, ClippedUpdate
from protocol.arithmetic.fixed_point import check_finite, clip
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, Study, TaskSpec, TrainingSpec
from protocol.messages.model import CLASSES
from protocol.policy.memory import SiteMemory


class SchemeName(StrEnum):
    AVERAGED = "averaged"
    MIXED = "mixed"
    ALONE = "alone"
    CENTRALISED = "centralised"


@dataclass(frozen=True, eq=False)
class SitesState:
    """All that moves from round to round.

    ``models`` float32[1 or S, D]: the shared model, or one per site. ``personal`` float32[S, P]: personal layers.
    ``own`` float32[S, D] and ``mixing`` float64[S]: what an algorithm's sites keep; ``common`` float32[D] what it
    makes known of that to everybody. Empty where there is no algorithm.
    """

    models: NDArray[np.float32] = field(repr=False)
    personal: NDArray[np.float32] = field(repr=False)
    own: NDArray[np.float32] = field(repr=False)
    mixing: NDArray[np.float64] = field(repr=False)
    common: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)

    def kept(self, site: int) -> Kept:
        """Return the site's own state beside its layers."""
        return Kept(self.own[site], float(self.mixing[site]))


@dataclass(frozen=True, eq=False)
class SitesRound:
    """The sites that were there, in order, and their clipped updates where any were averaged."""

    took_part: tuple[str, ...]
    updates: tuple[ClippedUpdate, ...] = field(default=(), repr=False)

    @property
    def clipped_share(self) -> float:
        """The part of the updates that had been longer than the norm."""
        return sum(update.was_clipped for update in self.updates) / len(self.updates) if self.updates else 0.0


@dataclass(frozen=True)
class Setting:
    """The constants of a run; ``initial`` and ``initial_personal`` are the model's first values.

    An algorithm's sites that are not there in a round train nothing. ``layers`` name the parts of an update in errors.
    """

    model: nn.Module
    initial: Vector = field(repr=False)
    initial_personal: Vector = field(repr=False)
    sites: tuple[SiteData, ...]
    seed: int
    training: TrainingSpec
    clip_norm: float
    device: torch.device
    attendance: Attendance = EVERYBODY
    task: TaskSpec = CLASSES
    layers: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(
        model: nn.Module,
        sites: tuple[SiteData, ...],
        seed: int,
        training: TrainingSpec,
        clip_norm: float,
        device: torch.device,
    ) -> Setting:
        """``model`` has its initial values now; later it is a tool that holds any site's."""
        first, personal = model_vector(model), personal_vector(model)
        layers = (("model", len(first)),)
        return Setting(model, first, personal, sites, seed, training, clip_norm, device, layers=layers)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites)

    def seeds(self) -> list[int]:
        return [site_seed(self.seed, site.name) for site in self.sites]

    def one_by_one(self) -> SiteTraining:
        return OneByOne(self.model, [site.train for site in self.sites], self.seeds(), self.training, self.device)

    def present(self, number: int) -> list[int]:
        """Return who is there in a round, by place; the requester always."""
        there = self.attendance
        return [
            place
            for place, site in enumerate(self.sites)
            if not place or (there.has_joined(site.name, number) and there.present(site.name, number))
        ]

    def problem(self, place: int, number: int) -> LocalProblem:
        data = self.sites[place].train
        loss = training_loss(self.training, data.y, self.task)
        return LocalProblem(self.model, data, self.training, loss, number, self.seeds()[place], self.device)

    def first_state(self, rows: int) -> SitesState:
        nothing, layers = np.zeros((0, len(self.initial)), np.float32), repeated(self.initial_personal, len(self.sites))
        return SitesState(repeated(self.initial, rows).copy(), layers.copy(), nothing, np.zeros(0))

    def averaged(self, vector: Vector, updates: Sequence[Vector]) -> tuple[Vector, tuple[ClippedUpdate, ...]]:
        """Clip, average with equal weights in float64 and apply, as a study's run does.

        Raises: UnusableUpdate when an update is not finite
        """
        for update in updates:
            check_finite(update, self.layers)
        given = tuple(ClippedUpdate(*clip(update, self.clip_norm)) for update in updates)
        total = sum((update.values for update in given), np.zeros(len(vector), np.float64))
        mean: Vector = (total / len(given)).astype(np.float32)
        return apply_aggregate(vector, mean, self.training.server_learning_rate), given


class SitesScheme(Scheme[SitesState, SitesRound], Protocol):
    """A scheme whose sites all use a model."""

    @property
    def setting(self) -> Setting: ...

    def vector(self, state: SitesState, site: int) -> Vector:
        """Return the shared part of the model that the site uses, float32[D]."""
        ...


def used_model(of: SitesScheme, state: SitesState, site: int) -> nn.Module:
    load_vector(of.setting.model, of.vector(state, site))
    load_personal(of.setting.model, state.personal[site])
    return of.setting.model


@dataclass(frozen=True)
class Averaged:
    """FedAvg, uniform; personal layers, where the model has them, stay in their rows."""

    setting: Setting
    sites: SiteTraining

    def start(self) -> SitesState:
        return self.setting.first_state(1)

    def round(self, state: SitesState, number: int) -> tuple[SitesState, SitesRound]:
        trained = self.sites.train(repeated(state.models[0], len(state.personal)), state.personal, number)
        vector, given = self.setting.averaged(state.models[0], list(trained.updates))
        return replace(state, models=vector[None], personal=trained.personal), SitesRound(self.setting.names, given)

    def vector(self, state: SitesState, site: int) -> Vector:
        return np.asarray(state.models[0])


@dataclass(frozen=True)
class Mixed:
    """The uniform average of what an algorithm's sites share; they keep something of their own beside it."""

    setting: Setting
    algorithm: Algorithm

    def start(self) -> SitesState:
        state = self.setting.first_state(1)
        kept = [self.algorithm.first(state.models[0]) for _ in self.setting.sites]
        return self._keeping(replace(state, common=np.zeros_like(state.models[0])), kept)

    def round(self, state: SitesState, number: int) -> tuple[SitesState, SitesRound]:
        setting, shared, updates = self.setting, state.models[0], []
        kept = [state.kept(place) for place in range(len(setting.sites))]
        there = setting.present(number)
        for place in there:
            problem = setting.problem(place, number)
            update, kept[place] = self.algorithm.train(problem, shared, kept[place], state.common)
            updates.append(update)
        vector, given = setting.averaged(shared, updates)
        common = state.common
        if self.algorithm.keeps_common:
            moved = sum(kept[place].own.astype(np.float64) - state.own[place] for place in there)
            common = (common + moved / len(setting.sites)).astype(np.float32)
        done = SitesRound(tuple(setting.names[place] for place in there), given)
        return self._keeping(replace(state, models=vector[None], common=common), kept), done

    def vector(self, state: SitesState, site: int) -> Vector:
        return self.algorithm.used(np.asarray(state.models[0]), state.kept(site))

    @staticmethod
    def _keeping(state: SitesState, kept: Sequence[Kept]) -> SitesState:
        return replace(state, own=np.stack([one.own for one in kept]), mixing=np.array([one.mixing for one in kept]))


@dataclass(frozen=True)
class Alone:
    """Every site applies its own update; ``pooled``: all use one model, trained as one site's on everybody's data."""

    setting: Setting
    sites: SiteTraining
    pooled: bool = False

    def start(self) -> SitesState:
        return self.setting.first_state(1 if self.pooled else len(self.setting.sites))

    def round(self, state: SitesState, number: int) -> tuple[SitesState, SitesRound]:
        trained = self.sites.train(state.models, state.personal[: len(state.models)], number)
        rate = self.setting.training.server_learning_rate
        models = [apply_aggregate(row, update, rate) for row, update in zip(state.models, trained.updates, strict=True)]
        layers = np.broadcast_to(trained.personal, state.personal.shape).copy()
        return replace(state, models=np.stack(models), personal=layers), SitesRound(self.setting.names)

    def vector(self, state: SitesState, site: int) -> Vector:
        return np.asarray(state.models[0 if self.pooled else site])


def scheme_of(name: SchemeName, setting: Setting, sites: SiteTraining, apfl: Apfl | None = None) -> SitesScheme:
    """The scheme, with ``sites`` to train them all; ``apfl`` has APFL's numbers."""
    if name is SchemeName.AVERAGED:
        return Averaged(setting, sites)
    if name is SchemeName.MIXED:
        return Mixed(setting, apfl or Apfl())
    if name is SchemeName.ALONE:
        return Alone(setting, sites)
    everybody, seed = joined([site.train for site in setting.sites]), site_seed(setting.seed, "pooled")
    pooled = OneByOne(setting.model, [everybody], [seed], setting.training, setting.device)
    return Alone(setting, pooled, pooled=True)


def require_baseline(study: Study, model: nn.Module, name: str) -> None:
    """ConfigurationError where a study's rule, training or model is none that the baseline stands in for."""
    if study.rule.name is not RuleName.FEDAVG or study.rule.norm_bound is not None:
        raise ConfigurationError(f'{name} takes FedAvg\'s place: rule = {{ name = "fedavg" }}, without norm_bound')
    require_plain_steps(model, study.training, name)
    require_no_statistics(model, name)


@dataclass(frozen=True)
class BaselineRounds:
    """A baseline's rounds, each with the record that a study's round has: of the model that the requester uses."""

    run: Run
    baseline: Mixed

    @classmethod
    def of(cls, run: Run, table: BaselineTable) -> BaselineRounds:
        """Raises: ConfigurationError as :func:`require_baseline`"""
        study = run.study
        require_baseline(study, run.model, table.name)
        setting = replace(
            Setting.of(run.model, run.sites, study.seed or 0, study.training, study.parameters.clip_norm, CPU),
            attendance=run.conditions.attendance,
            task=study.task,
            layers=tuple(layer_sizes(study.model.layers)),
        )
        return cls(run, Mixed(setting, table))

    def start(self) -> SitesState:
        return self.baseline.start()

    def round(self, state: SitesState, number: int) -> tuple[SitesState, RoundRecord]:
        after, done = self.baseline.round(state, number)
        sums = {
            "took_part": done.took_part[1:],
            "requester_norm": done.updates[0].norm,
            "clipped_share": done.clipped_share,
            "sum_of_weights": float(len(done.updates)),
        }
        record = round_record(self.run, self.shown(after), number, RoundKind.RELEASED, ())
        return after, record.model_copy(update=sums)

    def shown(self, state: SitesState) -> RunState:
        """The requester's model as a study's state has it; the rule weighs nobody."""
        vector = self.baseline.vector(state, 0)
        return RunState(vector, self.run.rule.init(()), SiteMemory(), personal=state.personal)
