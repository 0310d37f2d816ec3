"""The plain run: the same rounds without protection, ``--protection plain`` (docs/protocol.md 2, 8 to 10).

Same seeds, batches, clipping, weight rounding, lag of the weights, sites' policy and float32 application as the
secure run; only shares, sketches and fixed point are missing. So a secure run differs from its plain twin by the
rounding of fixed point and the sketch's error, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_agent.models import build_model
from client_agent.trainer import apply_aggregate, compute_update, evaluate, site_seed
from client_agent.update import Vector, layer_sizes, load_vector, model_vector
from harness.datasets.site_data import SiteData
from harness.history import RoundKind, RoundRecord, RunEnd, RunHistory, SiteValue
from protocol.arithmetic.fixed_point import check_finite, clip
from protocol.errors import ConfigurationError, LocalOptimumReached, PolicyRefusal
from protocol.parameters import Needs
from protocol.policy import (
    SiteMemory,
    SitePolicy,
    check_for_every_site,
    remember_contribution,
    remember_release,
    remember_skip,
)
from protocol.rules.interface import Measured, Rule, RuleState, SiteFacts
from protocol.rules.registry import rule_for
from protocol.wire.messages import Announcement, ListedWeight, RuleName, Study, WeightList

ErosionApplies = Literal["next_round", "same_round"]
CPU: Final = torch.device("cpu")
# A plain run hides nothing: salts and digests are there because the policy reads real messages.
NO_SECRET: Final = "00" * 32


@dataclass(frozen=True)
class Attendance:
    """Who is away: late joiners with the first round they can be listed in, and single missed rounds."""

    joins: tuple[tuple[str, int], ...] = ()
    missed: frozenset[tuple[int, str]] = frozenset()

    def has_joined(self, site: str, round_number: int) -> bool:
        return all(name != site or first <= round_number for name, first in self.joins)

    def present(self, site: str, round_number: int) -> bool:
        return (round_number, site) not in self.missed


EVERYBODY: Final = Attendance()


@dataclass(frozen=True, eq=False)
class ClippedUpdate:
    """A site's update after clipping, float64[D], and whether it had been longer."""

    values: NDArray[np.float64] = field(repr=False)
    was_clipped: bool


@dataclass(frozen=True, eq=False)
class Combined:
    """What a round opens: the average to all, distances and failed checks to the requester.

    ``average`` is None for a skipped round; ``took_part`` are the contributors in the sum.
    """

    average: Vector | None = field(repr=False)
    took_part: tuple[str, ...] = ()
    distances: tuple[tuple[str, float], ...] = ()
    failed_check: tuple[str, ...] = ()


Combine: TypeAlias = Callable[[Announcement, WeightList, ClippedUpdate, Mapping[str, ClippedUpdate]], Combined]
"""From the requester's update and every present contributor's to what the round opens: in plain, or protected."""


@dataclass(frozen=True)
class PlainRun:
    """What stays the same over a run."""

    study: Study
    seed: int
    requester: SiteData
    contributors: tuple[SiteData, ...]
    rule: Rule
    erosion_applies: ErosionApplies
    policy: SitePolicy
    attendance: Attendance
    model: nn.Module
    combine: Combine

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.contributors)


@dataclass(frozen=True)
class PlainState:
    """What moves from round to round. ``alone_because`` is set once the shared part is over."""

    vector: Vector
    rule_state: RuleState
    memory: SiteMemory
    model_version: int = 0
    alone_because: str | None = None


@dataclass(frozen=True, eq=False)
class Progress:
    """Where a run stands after a round: all that the next round depends on, and the records so far."""

    state: PlainState
    records: tuple[RoundRecord, ...]


AfterRound: TypeAlias = Callable[[Progress], None]


def run_plain(
    study: Study,
    sites: Sequence[SiteData],
    *,
    erosion_applies: ErosionApplies = "next_round",
    policy: SitePolicy | None = None,
    attendance: Attendance = EVERYBODY,
    resume: Progress | None = None,
    after_round: AfterRound = lambda progress: None,
) -> RunHistory:
    """A whole run without protection; the first of ``sites`` is the requester.

    When the sites' policy refuses a list the requester goes on alone for the remaining rounds (LOCAL_ONLY); at a
    local optimum the run stops. ``resume`` goes on where ``after_round`` was last called, to the same bits.

    Raises: ConfigurationError when the study has no seed
    """
    return run_rounds(
        study,
        sites,
        combine_plainly,
        protection="plain",
        erosion_applies=erosion_applies,
        policy=policy,
        attendance=attendance,
        resume=resume,
        after_round=after_round,
    )


def run_rounds(
    study: Study,
    sites: Sequence[SiteData],
    combine: Combine,
    *,
    protection: str,
    erosion_applies: ErosionApplies = "next_round",
    policy: SitePolicy | None = None,
    attendance: Attendance = EVERYBODY,
    resume: Progress | None = None,
    after_round: AfterRound = lambda progress: None,
) -> RunHistory:
    """The rounds of a run, however ``combine`` adds the updates up; see :func:`run_plain`."""
    if study.seed is None:
        raise ConfigurationError("a run in one process needs study.seed, so that it can be repeated")
    rule = rule_for(study.rule, batch_size=study.training.batch_size, grid=study.parameters.weight_grid)
    model = build_model(study.model, study.seed)
    run = PlainRun(
        study,
        study.seed,
        sites[0],
        tuple(sites[1:]),
        rule,
        erosion_applies,
        policy or SitePolicy(),
        attendance,
        model,
        combine,
    )
    progress = resume or Progress(PlainState(model_vector(model), rule.init(()), SiteMemory()), ())
    end, reason = RunEnd.COMPLETED, "all rounds are done"
    for round_number in range(len(progress.records) + 1, study.rounds + 1):
        try:
            state, record = plain_round(run, progress.state, round_number)
        except LocalOptimumReached as optimum:
            end, reason = RunEnd.LOCAL_OPTIMUM, optimum.detail
            break
        progress = Progress(state, (*progress.records, record))
        after_round(progress)
    alone_because = progress.state.alone_because
    if alone_because is not None and study.rule.name is not RuleName.LOCAL:
        end, reason = RunEnd.LOCAL_ONLY, alone_because
    return RunHistory(
        study.name,
        study.rule.name,
        protection,
        study.seed,
        run.requester.name,
        run.names,
        end,
        reason,
        progress.records,
        progress.state.vector,
    )


def plain_round(run: PlainRun, state: PlainState, round_number: int) -> tuple[PlainState, RoundRecord]:
    """One round: announce, check the policy, train, clip, weigh, sum, apply, run the rule.

    Raises: LocalOptimumReached, with the model as it was
    """
    state = replace(state, rule_state=_admitted(run, state.rule_state, round_number))
    weights = _in_roster_order(run, run.rule.numerators(state.rule_state))
    announcement: Announcement | None = None
    weight_list = _weight_list(run, round_number, weights)
    if state.alone_because is None:
        try:
            announcement = _announcement(run, state, weight_list)
        except PolicyRefusal as refusal:
            state = replace(state, alone_because=refusal.detail)
    if announcement is None:
        return _round_alone(run, state, round_number)
    state = replace(state, memory=remember_contribution(state.memory, announcement, weight_list))
    took_part = tuple(w.site for w in weights if run.attendance.present(w.site, round_number))
    if len(took_part) < run.study.parameters.least_contributors:
        state = replace(state, memory=remember_skip(state.memory, round_number))
        return state, _record(run, state, round_number, RoundKind.SKIPPED, weights)
    return _released_round(run, state, announcement, weight_list, took_part)


def squared_norm(values: NDArray[np.float64]) -> float:
    """Sum of squares in float64."""
    return float(np.sum(np.square(values)))


def average(
    own: NDArray[np.float64],
    updates: Sequence[tuple[ListedWeight, ClippedUpdate]],
    grid: int,
) -> Vector:
    """(g_0 + sum w_i g_i) / (1 + sum w_i) as float32: what the secure sum opens, but for fixed point's rounding."""
    total = own.copy()
    for weight, update in updates:
        total += update.values * (weight.numerator / grid)
    sum_of_weights = (grid + sum(weight.numerator for weight, _ in updates)) / grid
    averaged: Vector = (total / sum_of_weights).astype(np.float32)
    return averaged


def combine_plainly(
    announcement: Announcement,
    weight_list: WeightList,
    own: ClippedUpdate,
    updates: Mapping[str, ClippedUpdate],
) -> Combined:
    """The sum and the distances in the open: nobody fails a check."""
    names = tuple(updates)
    distances: tuple[tuple[str, float], ...] = ()
    if announcement.opens is Needs.DISTANCES:
        distances = tuple((name, float(np.sqrt(squared_norm(updates[name].values - own.values)))) for name in names)
    summed = [(weight, updates[weight.site]) for weight in weight_list.weights if weight.site in updates]
    return Combined(average(own.values, summed, weight_list.grid), names, distances)


def _released_round(
    run: PlainRun,
    state: PlainState,
    announcement: Announcement,
    weight_list: WeightList,
    took_part: tuple[str, ...],
) -> tuple[PlainState, RoundRecord]:
    round_number, grid = announcement.round, run.study.parameters.weight_grid
    own = _update(run, run.requester, state.vector, round_number)
    updates = {s.name: _update(run, s, state.vector, round_number) for s in run.contributors if s.name in took_part}
    norm = float(np.sqrt(squared_norm(own.values)))
    opened = run.combine(announcement, weight_list, own, updates)
    if opened.average is None:
        state = replace(state, memory=remember_skip(state.memory, round_number))
        return state, _record(run, state, round_number, RoundKind.SKIPPED, weight_list.weights)
    measured = Measured(round=round_number, distances=opened.distances, requester_norm=norm, took_part=opened.took_part)
    rule_state = run.rule.apply(state.rule_state, measured)
    aggregate = opened.average
    if run.erosion_applies == "same_round":
        used = run.rule.numerators(rule_state)
        aggregate = average(own.values, [(w, updates[w.site]) for w in used if w.site in updates], grid)
    after = PlainState(
        apply_aggregate(state.vector, aggregate, run.study.training.server_learning_rate),
        rule_state,
        remember_release(state.memory, announcement, weight_list, opened.took_part),
        state.model_version + 1,
    )
    clipped = [own.was_clipped, *(update.was_clipped for update in updates.values())]
    record = _record(run, after, round_number, RoundKind.RELEASED, weight_list.weights)
    return after, replace(
        record,
        distances=tuple(SiteValue(site, value) for site, value in opened.distances),
        requester_norm=norm,
        took_part=opened.took_part,
        clipped_share=sum(clipped) / len(clipped),
    )


def _round_alone(run: PlainRun, state: PlainState, round_number: int) -> tuple[PlainState, RoundRecord]:
    """The requester's own clipped update, applied like an aggregate of one."""
    own = _update(run, run.requester, state.vector, round_number)
    aggregate = average(own.values, [], run.study.parameters.weight_grid)
    vector = apply_aggregate(state.vector, aggregate, run.study.training.server_learning_rate)
    after = replace(state, vector=vector, model_version=state.model_version + 1)
    record = _record(run, after, round_number, RoundKind.ALONE, ())
    norm = float(np.sqrt(squared_norm(own.values)))
    return after, replace(record, requester_norm=norm, clipped_share=float(own.was_clipped))


def _admitted(run: PlainRun, rule_state: RuleState, round_number: int) -> RuleState:
    ready = tuple(
        SiteFacts(name=site.name, samples=len(site.train))
        for site in run.contributors
        if run.attendance.has_joined(site.name, round_number)
    )
    return run.rule.admit(rule_state, ready)


def _in_roster_order(run: PlainRun, weights: tuple[ListedWeight, ...]) -> tuple[ListedWeight, ...]:
    """The rule lists sites as they were admitted, a weight list names them in roster order."""
    return tuple(sorted(weights, key=lambda weight: run.names.index(weight.site)))


def _weight_list(run: PlainRun, round_number: int, weights: tuple[ListedWeight, ...]) -> WeightList:
    return WeightList(
        study_digest=run.study.digest(),
        round=round_number,
        grid=run.study.parameters.weight_grid,
        weights=weights,
        salt=NO_SECRET,
    )


def _announcement(run: PlainRun, state: PlainState, weight_list: WeightList) -> Announcement:
    """The round as the secure run would announce it. Raises: PolicyRefusal when a site would decline"""
    listed = tuple(weight.site for weight in weight_list.weights)
    least = run.study.parameters.least_contributors
    if len(listed) < least:
        raise PolicyRefusal(f"{len(listed)} contributors have weight left, at least {least} are needed")
    announcement = Announcement(
        study_digest=weight_list.study_digest,
        round=weight_list.round,
        listed=listed,
        least_contributors=least,
        opens=run.rule.needs,
        model_version=state.model_version,
        model_digest=NO_SECRET,
        weight_list_digest=weight_list.digest(),
        closes_at_s=0,
    )
    check_for_every_site(
        announcement,
        weight_list,
        run.study.parameters,
        rule_declares_never_rising=run.rule.weights_never_rise,
        policy=run.policy,
        memory=state.memory,
        contributors=run.names,
        needs=run.rule.needs,
    )
    return announcement


def _update(run: PlainRun, site: SiteData, vector: Vector, round_number: int) -> ClippedUpdate:
    load_vector(run.model, vector)
    seed = site_seed(run.seed, site.name)
    raw = compute_update(run.model, site.train, run.study.training, round=round_number, seed=seed, device=CPU)
    check_finite(raw, layer_sizes(run.study.model.layers))
    return ClippedUpdate(*clip(raw, run.study.parameters.clip_norm))


def _record(
    run: PlainRun, state: PlainState, round_number: int, kind: RoundKind, weights: tuple[ListedWeight, ...]
) -> RoundRecord:
    """The round's record with the requester's accuracy; a released round adds what it measured."""
    load_vector(run.model, state.vector)
    test = evaluate(run.model, run.requester.test, CPU)
    validation = run.requester.validation
    return RoundRecord(
        round=round_number,
        kind=kind,
        handed_out=weights,
        alphas=tuple(SiteValue(site.name, site.alpha) for site in state.rule_state.sites),
        distances=(),
        requester_norm=0.0,
        took_part=(),
        clipped_share=0.0,
        test_accuracy=test.accuracy,
        test_loss=test.loss,
        model_norm=float(np.linalg.norm(state.vector.astype(np.float64))),
        validation_accuracy=evaluate(run.model, validation, CPU).accuracy if len(validation) else None,
    )
