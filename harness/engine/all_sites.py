"""Schemes in which all sites count alike and each uses a model: personal ones, and baselines in FedAvg's place.

averaged      one shared model, uniform average of the sites' updates: FedAvg; iFedAvg where the model has personal
              layers
mixed         an algorithm in which sites keep more than a model: APFL, and the baselines
alone         every site trains by itself
centralised   one model trained on the pooled data: what would be possible if data could be moved

Updates are clipped, averaged and applied as a study's. Under the protocol the first site stands for the requester of
FedAvg, and nothing about single sites is opened. Every round is against a new model, so nothing that the sites' policy
remembers bears on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.data import Examples
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
from harness.engine.algorithms import (
    Algorithm,
    Apfl,
    BaselineTable,
    Kept,
    LocalProblem,
    require_no_statistics,
    require_plain_steps,
)
from harness.engine.history import RoundKind, RoundRecord, RunEnd, RunHistory
from harness.engine.protected_sum import SecureSum, secure_sum
from harness.engine.run_state import (
    EVERYBODY,
    USUAL,
    Attendance,
    Conditions,
    Run,
    RunState,
    final_scores,
    require_no_divergence,
    round_record,
)
from harness.engine.study_round import announce, lists_to_try
from harness.engine.training import OneByOne, Progress, Scheme, SiteTraining, repeated, train
from harness.engine.updates import CPU, ClippedUpdate, PlainSum, RoundInputs, everybody_in_range
from protocol.arithmetic.fixed_point import check_finite, clip
from protocol.errors import ConfigurationError, ProtocolViolation
from protocol.messages.control import RuleName, Study, TaskSpec, TrainingSpec
from protocol.messages.model import CLASSES
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.rules.interface import SiteFacts
from protocol.rules.registry import rule_for

Averaging: TypeAlias = Callable[[int, Sequence[ClippedUpdate]], Vector]
"""A round's number, from 1, and clipped updates in the sites' order -> their average, float32[D]."""


def in_the_open(number: int, updates: Sequence[ClippedUpdate]) -> Vector:
    """The mean in float64, rounded once."""
    total = np.zeros(len(updates[0].values), np.float64)
    for update in updates:
        total += update.values
    averaged: Vector = (total / len(updates)).astype(np.float32)
    return averaged


@dataclass(frozen=True, eq=False)
class UnderTheProtocol:
    """Every round announced, checked against the sites' policy, shared, range-checked, summed and opened."""

    run: Run
    summing: SecureSum = field(repr=False)

    @classmethod
    def of(cls, study: Study, sites: Sequence[SiteData], model: nn.Module) -> UnderTheProtocol:
        """Raises: ConfigurationError for another rule than the uniform average"""
        if study.rule.name is not RuleName.FEDAVG or study.rule.norm_bound is not None:
            raise ConfigurationError(
                f"study {study.name!r}: a comparison of personal models averages all sites alike; under the protocol "
                "its rule is 'fedavg', without norm_bound"
            )
        rule = rule_for(study.rule, batch_size=study.training.batch_size, grid=study.parameters.weight_grid)
        summing = secure_sum(study, sites)
        contributors = tuple(sites[1:])
        run = Run(study, sites[0], contributors, rule, "next_round", SitePolicy(), EVERYBODY, model, summing)
        return cls(run, summing)

    def __call__(self, number: int, updates: Sequence[ClippedUpdate]) -> Vector:
        """Raises: PolicyRefusal, ProtocolViolation when the round is skipped; AggregateOutOfBounds"""
        run, state = self.run, self._state(number)
        announced = announce(
            run, state, number, lists_to_try(run, state)[-1:]
        )  # nobody is ever away: all listed are needed
        requester, (own, *others) = run.requester.name, updates
        given = RoundInputs(
            announced.announcement,
            announced.weight_list,
            requester,
            own,
            dict(zip(run.names, others, strict=True)),
            None,
            everybody_in_range(announced.announcement, requester),
            run.study.parameters.clip_norm,
        )
        averaged = self.summing.updates(given).average
        if averaged is None:
            raise ProtocolViolation(f"round {number} was skipped: too few sites are left after the checks")
        return averaged

    def _state(self, number: int) -> RunState:
        """The study before a round: everybody is listed, and the model is as old as the round."""
        facts = tuple(SiteFacts(name=site.name, samples=len(site.train)) for site in self.run.contributors)
        rule_state = self.run.rule.admit(self.run.rule.init(()), facts)
        return RunState(np.zeros(0, np.float32), rule_state, SiteMemory(), model_version=number - 1)


class SchemeName(StrEnum):
    AVERAGED = "averaged"
    MIXED = "mixed"
    ALONE = "alone"
    CENTRALISED = "centralised"

    @property
    def protectable(self) -> bool:
        """True if a protected run means anything: pooled data have left their sites."""
        return self is not SchemeName.CENTRALISED


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

    ``average`` makes one of all sites' updates wherever a scheme shares them; an algorithm's sites that are not there
    in a round train nothing. ``layers`` name the parts of an update in errors.
    """

    model: nn.Module
    initial: Vector = field(repr=False)
    initial_personal: Vector = field(repr=False)
    sites: tuple[SiteData, ...]
    seed: int
    training: TrainingSpec
    clip_norm: float
    device: torch.device
    average: Averaging = in_the_open
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
        average: Averaging = in_the_open,
    ) -> Setting:
        """``model`` has its initial values now; later it is a tool that holds any site's."""
        first, personal = model_vector(model), personal_vector(model)
        layers = (("model", len(first)),)
        return Setting(model, first, personal, sites, seed, training, clip_norm, device, average, layers=layers)

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

    def averaged(self, vector: Vector, updates: Sequence[Vector], number: int) -> tuple[Vector, list[ClippedUpdate]]:
        """Clip, average with equal weights and apply, as a study's run does.

        Raises: UnusableUpdate when an update is not finite; what ``average`` raises
        """
        given = []
        for update in updates:
            check_finite(update, self.layers)
            given.append(ClippedUpdate(*clip(update, self.clip_norm)))
        return apply_aggregate(vector, self.average(number, given), self.training.server_learning_rate), given


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
        vector, given = self.setting.averaged(state.models[0], list(trained.updates), number)
        done = SitesRound(self.setting.names, tuple(given))
        return replace(state, models=vector[None], personal=trained.personal), done

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
        vector, given = setting.averaged(shared, updates, number)
        common = state.common
        if self.algorithm.keeps_common:
            moved = sum(kept[place].own.astype(np.float64) - state.own[place] for place in there)
            common = (common + moved / len(setting.sites)).astype(np.float32)
        done = SitesRound(tuple(setting.names[place] for place in there), tuple(given))
        return self._keeping(replace(state, models=vector[None], common=common), kept), done

    def vector(self, state: SitesState, site: int) -> Vector:
        return self.algorithm.used(np.asarray(state.models[0]), state.kept(site))

    @staticmethod
    def _keeping(state: SitesState, kept: Sequence[Kept]) -> SitesState:
        return replace(state, own=np.stack([one.own for one in kept]), mixing=np.array([one.mixing for one in kept]))


@dataclass(frozen=True)
class Alone:
    """Every site applies its own update."""

    setting: Setting
    sites: SiteTraining

    def start(self) -> SitesState:
        return self.setting.first_state(len(self.setting.sites))

    def round(self, state: SitesState, number: int) -> tuple[SitesState, SitesRound]:
        trained = self.sites.train(state.models, state.personal, number)
        rate = self.setting.training.server_learning_rate
        models = [apply_aggregate(row, update, rate) for row, update in zip(state.models, trained.updates, strict=True)]
        return replace(state, models=np.stack(models), personal=trained.personal), SitesRound(self.setting.names)

    def vector(self, state: SitesState, site: int) -> Vector:
        return np.asarray(state.models[site])


@dataclass(frozen=True)
class Centralised:
    """One model on all sites' training examples, trained as one site's."""

    setting: Setting

    def start(self) -> SitesState:
        return self.setting.first_state(1)

    def round(self, state: SitesState, number: int) -> tuple[SitesState, SitesRound]:
        setting = self.setting
        parts = [site.train for site in setting.sites]
        pooled = Examples(np.concatenate([part.X for part in parts]), np.concatenate([part.y for part in parts]))
        seeds = [site_seed(setting.seed, "pooled")]
        training = OneByOne(setting.model, [pooled], seeds, setting.training, setting.device)
        trained = training.train(state.models, state.personal[:1], number)
        vector = apply_aggregate(state.models[0], trained.updates[0], setting.training.server_learning_rate)
        layers = repeated(trained.personal[0], len(state.personal)).copy()
        return replace(state, models=vector[None], personal=layers), SitesRound(setting.names)

    def vector(self, state: SitesState, site: int) -> Vector:
        return np.asarray(state.models[0])


def scheme_of(name: SchemeName, setting: Setting, sites: SiteTraining, apfl: Apfl | None = None) -> SitesScheme:
    """The scheme, with ``sites`` to train them all; ``apfl`` has APFL's numbers."""
    if name is SchemeName.AVERAGED:
        return Averaged(setting, sites)
    if name is SchemeName.MIXED:
        return Mixed(setting, apfl or Apfl())
    if name is SchemeName.ALONE:
        return Alone(setting, sites)
    return Centralised(setting)


def require_baseline(study: Study, model: nn.Module, name: str) -> None:
    """ConfigurationError where a study's rule, training or model is none that the baseline stands in for."""
    if study.rule.name is not RuleName.FEDAVG or study.rule.norm_bound is not None:
        raise ConfigurationError(f'{name} takes FedAvg\'s place: rule = {{ name = "fedavg" }}, without norm_bound')
    require_plain_steps(model, study.training, name)
    require_no_statistics(model, name)


@dataclass(frozen=True)
class AtRequester:
    """A baseline's rounds, each with the record that a study's round has: of the model that the requester uses."""

    run: Run
    baseline: Mixed

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


def run_baseline(
    study: Study,
    sites: Sequence[SiteData],
    table: BaselineTable,
    model: nn.Module,
    conditions: Conditions = USUAL,
    resume: Progress[SitesState, RoundRecord] | None = None,
    after_round: Callable[[Progress[SitesState, RoundRecord]], None] = lambda progress: None,
) -> RunHistory:
    """All rounds; the first of ``sites`` is the requester, ``model`` has its first values. Of ``conditions`` only
    who is there, and the metrics, are looked at.

    Raises: ConfigurationError as :func:`require_baseline`; UnusableUpdate when the model diverges
    """
    require_baseline(study, model, table.name)
    rounds = _at_requester(study, tuple(sites), table, model, conditions)
    first = round_record(rounds.run, rounds.shown(rounds.start()), 0, RoundKind.SKIPPED, ())
    for record in resume.records[-1:] if resume else ():
        require_no_divergence(record, first)

    def watched(progress: Progress[SitesState, RoundRecord]) -> None:
        after_round(progress)
        require_no_divergence(progress.records[-1], first)

    progress, _ = train(rounds, resume, lambda reached: len(reached.records) >= study.rounds, watched)
    shown = rounds.shown(progress.state)
    return RunHistory(
        study.name,
        study.rule.name,
        "plain",
        study.seed or 0,
        sites[0].name,
        rounds.run.names,
        RunEnd.COMPLETED,
        "all rounds are done",
        progress.records,
        shown.vector,
        final_scores(rounds.run, shown, conditions.bootstrap),
    )


def _at_requester(
    study: Study, sites: tuple[SiteData, ...], table: BaselineTable, model: nn.Module, conditions: Conditions
) -> AtRequester:
    run = Run(
        study,
        sites[0],
        sites[1:],
        rule_for(study.rule, batch_size=study.training.batch_size, grid=study.parameters.weight_grid),
        "next_round",
        SitePolicy(),
        conditions.attendance,
        model,
        PlainSum(),
        followed=conditions.followed,
        own_metrics=conditions.own_metrics,
    )
    setting = replace(
        Setting.of(model, sites, study.seed or 0, study.training, study.parameters.clip_norm, CPU),
        attendance=conditions.attendance,
        task=study.task,
        layers=tuple(layer_sizes(study.model.layers)),
    )
    return AtRequester(run, Mixed(setting, table))
