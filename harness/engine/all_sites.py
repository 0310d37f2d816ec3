"""Runs whose sites all keep and use models: personal schemes, and baselines in FedAvg's place.

The first site stands for the requester of FedAvg; the rule weighs all sites alike, and nothing about single sites is
opened. Every round is against a new model, so nothing that the sites' policy remembers bears on it.

averaged      one shared model, uniform average of the sites' updates: FedAvg; iFedAvg where the model has personal
              layers
mixed         APFL: the shared model of FedAvg, mixed at every site with a model of its own
alone         every site trains by itself
centralised   one model trained on the pooled data: what would be possible if data could be moved

Updates are clipped, averaged and applied as FedAvg's. Personalised algorithms are judged by the requester's personal
model. A run that is killed begins again: sites keep more between rounds than a study's checkpoint holds.
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
from client_agent.learning.flat_vector import Vector, load_personal, load_vector, model_vector, personal_vector
from client_agent.learning.trainer import apply_aggregate
from client_agent.learning.training_seeds import site_seed
from client_agent.tasks.losses import training_loss
from harness.datasets.site_data import SiteData
from harness.engine.algorithms import (
    Baseline,
    BaselineTable,
    Ditto,
    DittoTable,
    FedProx,
    FedProxTable,
    LocalProblem,
    MixedSite,
    MixedTraining,
    PFedMe,
    PFedMeTable,
    Scaffold,
    SiteRound,
    require_plain_steps,
)
from harness.engine.history import RoundKind, RoundRecord, RunEnd, RunHistory
from harness.engine.protected_sum import SecureSum, secure_sum
from harness.engine.run_state import (
    EVERYBODY,
    USUAL,
    AfterRound,
    Conditions,
    Progress,
    Run,
    RunState,
    final_scores,
    require_no_divergence,
    round_record,
)
from harness.engine.study_round import announce, lists_to_try
from harness.engine.training import OneByOne, SiteTraining, repeated
from harness.engine.updates import ClippedUpdate, PlainSum, RoundInputs, clipped, everybody_in_range, servers_noise
from protocol.arithmetic.fixed_point import check_finite, clip
from protocol.errors import ConfigurationError, ProtocolViolation
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.rules.interface import SiteFacts
from protocol.rules.registry import rule_for
from protocol.wire.messages import RuleName, Study, TrainingSpec

Averaging: TypeAlias = Callable[[int, Sequence[ClippedUpdate]], Vector]
"""From a round's number, counted from 1, and the clipped updates in the sites' order to their average, float32[D]."""


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
            servers_noise(run.study, number),
            run.study.parameters.scale,
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
        """Whether a protected run means anything: pooled data have left their sites."""
        return self is not SchemeName.CENTRALISED


@dataclass(frozen=True, eq=False)
class SchemeState:
    """All that moves from round to round.

    ``models`` float32[1 or S, D]: the shared model, or one per site. ``personal`` float32[S, P]: personal layers.
    ``own`` float32[S, D] and ``mixing`` float64[S]: APFL's, empty otherwise.
    """

    models: NDArray[np.float32] = field(repr=False)
    personal: NDArray[np.float32] = field(repr=False)
    own: NDArray[np.float32] = field(repr=False)
    mixing: NDArray[np.float64] = field(repr=False)


@dataclass(frozen=True)
class Mixing:
    """APFL's mixing weight at the start, and whether it adapts."""

    start: float = 0.5
    adaptive: bool = True


@dataclass(frozen=True)
class Comparison:
    """What stays the same over a run; ``initial`` and ``initial_personal`` are the model's first values.

    ``average`` makes one of all sites' updates wherever a scheme shares them.
    """

    model: nn.Module
    initial: Vector = field(repr=False)
    initial_personal: Vector = field(repr=False)
    sites: tuple[SiteData, ...]
    seed: int
    training: TrainingSpec
    clip_norm: float
    mixing: Mixing
    device: torch.device
    average: Averaging = in_the_open

    @staticmethod
    def of(
        model: nn.Module,
        sites: tuple[SiteData, ...],
        seed: int,
        training: TrainingSpec,
        clip_norm: float,
        mixing: Mixing,
        device: torch.device,
        average: Averaging = in_the_open,
    ) -> Comparison:
        """``model`` has its initial values now; later it is a tool that holds any site's."""
        first, personal = model_vector(model), personal_vector(model)
        return Comparison(model, first, personal, sites, seed, training, clip_norm, mixing, device, average)

    def seeds(self) -> list[int]:
        return [site_seed(self.seed, site.name) for site in self.sites]

    def one_by_one(self) -> SiteTraining:
        return OneByOne(self.model, [site.train for site in self.sites], self.seeds(), self.training, self.device)


class Scheme(Protocol):
    """A scheme's start and its rounds, counted from 1; ``round`` also gives the share of updates that were clipped."""

    def start(self) -> SchemeState: ...

    def round(self, state: SchemeState, number: int) -> tuple[SchemeState, float]: ...


def scheme_of(name: SchemeName, comparison: Comparison, sites: SiteTraining) -> Scheme:
    """The scheme, with ``sites`` to train them all."""
    if name is SchemeName.AVERAGED:
        return Averaged(comparison, sites)
    if name is SchemeName.MIXED:
        return Mixed(comparison)
    if name is SchemeName.ALONE:
        return Alone(comparison, sites)
    return Centralised(comparison, pooled_training(comparison))


def first_state(comparison: Comparison, rows: int) -> SchemeState:
    """The model's initial values in every row."""
    vector, personal = comparison.initial, comparison.initial_personal
    nothing = np.zeros((0, len(vector)), np.float32)
    layers = repeated(personal, len(comparison.sites))
    return SchemeState(repeated(vector, rows).copy(), layers.copy(), nothing, np.zeros(0))


def load_site(comparison: Comparison, state: SchemeState, site: int) -> nn.Module:
    """The model as the site uses it."""
    shared = state.models[site if len(state.models) > 1 else 0]
    if len(state.own):
        shared = MixedSite(state.own[site], float(state.mixing[site])).mixed(shared)
    load_vector(comparison.model, shared)
    load_personal(comparison.model, state.personal[site])
    return comparison.model


@dataclass(frozen=True)
class Averaged:
    """FedAvg, uniform; personal layers, where the model has them, stay in their rows."""

    comparison: Comparison
    sites: SiteTraining

    def start(self) -> SchemeState:
        return first_state(self.comparison, 1)

    def round(self, state: SchemeState, number: int) -> tuple[SchemeState, float]:
        trained = self.sites.train(repeated(state.models[0], len(state.personal)), state.personal, number)
        vector, clipped = averaged(self.comparison, state.models[0], trained.updates, number)
        return replace(state, models=vector[None], personal=trained.personal), clipped


@dataclass(frozen=True)
class Mixed:
    """APFL. Every site's own model begins at the shared one."""

    comparison: Comparison

    def start(self) -> SchemeState:
        sites = len(self.comparison.sites)
        state = first_state(self.comparison, 1)
        return replace(
            state, own=repeated(state.models[0], sites).copy(), mixing=np.full(sites, self.comparison.mixing.start)
        )

    def round(self, state: SchemeState, number: int) -> tuple[SchemeState, float]:
        comparison = self.comparison
        training = MixedTraining(comparison.model, comparison.training, comparison.mixing.adaptive, comparison.device)
        updates, kept = [], []
        for row, (site, seed) in enumerate(zip(comparison.sites, comparison.seeds(), strict=True)):
            before = MixedSite(state.own[row], float(state.mixing[row]))
            update, own = training.train(site.train, state.models[0], before, round=number, seed=seed)
            updates.append(update)
            kept.append(own)
        vector, clipped = averaged(comparison, state.models[0], np.stack(updates), number)
        own_models = np.stack([site.own for site in kept])
        mixing = np.array([site.mixing for site in kept])
        return replace(state, models=vector[None], own=own_models, mixing=mixing), clipped


@dataclass(frozen=True)
class Alone:
    """Every site applies its own update."""

    comparison: Comparison
    sites: SiteTraining

    def start(self) -> SchemeState:
        return first_state(self.comparison, len(self.comparison.sites))

    def round(self, state: SchemeState, number: int) -> tuple[SchemeState, float]:
        trained = self.sites.train(state.models, state.personal, number)
        rate = self.comparison.training.server_learning_rate
        models = [apply_aggregate(row, update, rate) for row, update in zip(state.models, trained.updates, strict=True)]
        return replace(state, models=np.stack(models), personal=trained.personal), 0.0


@dataclass(frozen=True)
class Centralised:
    """One model on all sites' training examples, which ``pooled`` trains as one site."""

    comparison: Comparison
    pooled: SiteTraining

    def start(self) -> SchemeState:
        return first_state(self.comparison, 1)

    def round(self, state: SchemeState, number: int) -> tuple[SchemeState, float]:
        trained = self.pooled.train(state.models, state.personal[:1], number)
        rate = self.comparison.training.server_learning_rate
        vector = apply_aggregate(state.models[0], trained.updates[0], rate)
        layers = repeated(trained.personal[0], len(state.personal)).copy()
        return replace(state, models=vector[None], personal=layers), 0.0


def pooled_training(comparison: Comparison) -> SiteTraining:
    """All sites' training examples as those of one site."""
    pooled = Examples(
        np.concatenate([site.train.X for site in comparison.sites]),
        np.concatenate([site.train.y for site in comparison.sites]),
    )
    seeds = [site_seed(comparison.seed, "pooled")]
    return OneByOne(comparison.model, [pooled], seeds, comparison.training, comparison.device)


def averaged(comparison: Comparison, vector: Vector, updates: NDArray[np.float32], number: int) -> tuple[Vector, float]:
    """Clip, average with equal weights and apply, as a study's run does; and the share that was clipped.

    Raises: UnusableUpdate when an update is not finite; what the comparison's average raises
    """
    given = []
    for update in updates:
        check_finite(update, (("model", len(vector)),))
        given.append(ClippedUpdate(*clip(update, comparison.clip_norm)))
    average = comparison.average(number, given)
    applied = apply_aggregate(vector, average, comparison.training.server_learning_rate)
    return applied, sum(update.was_clipped for update in given) / len(given)


def baseline_of(table: BaselineTable) -> Baseline:
    """The algorithm with its numbers."""
    if isinstance(table, FedProxTable):
        return FedProx(table.mu)
    if isinstance(table, DittoTable):
        return Ditto(table.pull)
    if isinstance(table, PFedMeTable):
        return PFedMe(table.pull, table.steps, table.personal_rate)
    return Scaffold()


def require_baseline(study: Study, model: nn.Module, name: str) -> None:
    """ConfigurationError where a study's rule, training or model is none that the baseline stands in for."""
    if study.rule.name is not RuleName.FEDAVG or study.rule.norm_bound is not None:
        raise ConfigurationError(f'{name} takes FedAvg\'s place: rule = {{ name = "fedavg" }}, without norm_bound')
    require_plain_steps(model, study.training, name)


def run_baseline(
    study: Study,
    sites: Sequence[SiteData],
    table: BaselineTable,
    model: nn.Module,
    conditions: Conditions = USUAL,
    after_round: AfterRound = lambda progress: None,
) -> RunHistory:
    """All rounds; the first of ``sites`` is the requester, ``model`` has its first values. Of ``conditions`` only
    who is there, and the metrics, are looked at.

    Raises: ConfigurationError as :func:`require_baseline`; UnusableUpdate when the model diverges
    """
    require_baseline(study, model, table.name)
    rounds = _Rounds(study, sites, baseline_of(table), model, conditions)
    for number in range(1, study.rounds + 1):
        rounds.do(number)
        after_round(Progress(rounds.shown, tuple(rounds.records)))
        require_no_divergence(rounds.records[-1], rounds.first)
    names = tuple(site.name for site in sites)
    return RunHistory(
        study.name,
        study.rule.name,
        "plain",
        study.seed or 0,
        names[0],
        names[1:],
        RunEnd.COMPLETED,
        "all rounds are done",
        tuple(rounds.records),
        rounds.shown.vector,
        final_scores(rounds.run, rounds.shown, conditions.bootstrap),
    )


class _Rounds:
    """All that moves: the shared model, what each site keeps, what is common, and the records."""

    def __init__(
        self, study: Study, sites: Sequence[SiteData], baseline: Baseline, model: nn.Module, conditions: Conditions
    ) -> None:
        rule = rule_for(study.rule, batch_size=study.training.batch_size, grid=study.parameters.weight_grid)
        requester, *others = sites
        self.run = Run(
            study,
            requester,
            tuple(others),
            rule,
            "next_round",
            SitePolicy(),
            conditions.attendance,
            model,
            PlainSum(),
            followed=conditions.followed,
            own_metrics=conditions.own_metrics,
        )
        self._baseline = baseline
        self._shared = model_vector(model)
        self._memories = {site.name: baseline.first_memory(self._shared) for site in sites}
        self._common = np.zeros_like(self._shared)
        personal = repeated(personal_vector(model), len(sites)).copy()
        self.shown = RunState(self._shared, rule.init(()), SiteMemory(), personal=personal)
        self.first = round_record(self.run, self.shown, 0, RoundKind.SKIPPED, ())
        self.records: list[RoundRecord] = []

    def do(self, number: int) -> None:
        """One round of everybody who is there. Raises: UnusableUpdate"""
        run, attendance = self.run, self.run.attendance
        joined = (site for site in run.contributors if attendance.has_joined(site.name, number))
        there = [run.requester, *(site for site in joined if attendance.present(site.name, number))]
        trained = {site.name: self._trained(site, number) for site in there}
        updates = [clipped(run.study, one.update, None, one.update[:0]) for one in trained.values()]
        self._shared = apply_aggregate(self._shared, _mean(updates), run.study.training.server_learning_rate)
        self._remember(trained)
        own = trained[run.requester.name]
        self.shown = replace(self.shown, vector=self._shared if own.personal is None else own.personal)
        record = round_record(run, self.shown, number, RoundKind.RELEASED, ())
        sums = {
            "took_part": tuple(site.name for site in there[1:]),
            "requester_norm": updates[0].norm,
            "clipped_share": sum(update.was_clipped for update in updates) / len(updates),
            "sum_of_weights": float(len(updates)),
        }
        self.records.append(record.model_copy(update=sums))

    def _trained(self, site: SiteData, number: int) -> SiteRound:
        study = self.run.study
        seed = site_seed(study.seed or 0, site.name)
        loss = training_loss(study.training, site.train.y, study.task)
        problem = LocalProblem(self.run.model, site.train, study.training, loss, number, seed)
        return self._baseline.train(problem, self._shared, self._memories[site.name], self._common)

    def _remember(self, trained: dict[str, SiteRound]) -> None:
        if self._baseline.keeps_common:
            moved = sum(one.memory.astype(np.float64) - self._memories[name] for name, one in trained.items())
            self._common = (self._common + moved / len(self._memories)).astype(np.float32)
        self._memories |= {name: one.memory for name, one in trained.items()}


def _mean(updates: Sequence[ClippedUpdate]) -> Vector:
    """In float64, rounded once."""
    total = np.sum([update.values for update in updates], axis=0)
    averaged: Vector = (total / len(updates)).astype(np.float32)
    return averaged
