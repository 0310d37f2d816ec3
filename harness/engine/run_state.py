"""State of a run in one process, fixed and moving, and the record of one round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.evaluation import NOTHING, Assessor, OwnMetrics
from client_agent.learning.flat_vector import Vector, has_statistics
from client_agent.learning.plugin import Plugin, assessor
from client_agent.learning.sampling import site_seed
from client_agent.learning.scores import FOLLOWED, FinalScores, MetricName
from client_agent.learning.study_file import FinishTable
from client_agent.site.events import opened_values, site_values
from harness.datasets.site_data import SiteData
from harness.engine.algorithms import BaselineTable
from harness.engine.history import RoundKind, RoundRecord
from harness.engine.training import ON_CPU, Batched, Computing, batchable, repeated
from harness.engine.updates import CPU, ClippedUpdate, Summing, Training, clipped, clipped_update, load_site, own_weight
from protocol.errors import Clause, UnusableUpdate
from protocol.messages.control import Announcement, ListedWeight, Purpose, Study, WeightList
from protocol.policy.exposure import SummedRow
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.rounds.judgement import Judgement
from protocol.rounds.planning import Candidate, Done, Situation, next_purpose
from protocol.rules.interface import Rule, RuleState
from protocol.shared_model import model_part

ErosionApplies = Literal["next_round", "same_round"]


@dataclass(frozen=True)
class Attendance:
    """Absences: late joiners with the first round they can be listed in, and single missed rounds."""

    joins: tuple[tuple[str, int], ...] = ()
    missed: frozenset[tuple[int, str]] = frozenset()

    def has_joined(self, site: str, round_number: int) -> bool:
        return all(name != site or first <= round_number for name, first in self.joins)

    def present(self, site: str, round_number: int) -> bool:
        return (round_number, site) not in self.missed


EVERYBODY: Final = Attendance()


USUAL_POLICY: Final = SitePolicy()


@dataclass(frozen=True)
class Conditions:
    """The conditions of a run in one process beside its study; ``policy`` is every site's.

    ``rule``, ``model`` (with its first values) and ``baseline`` are ones that studies do not know, in place of the
    study's own, for plain runs; of a baseline's run nothing else is looked at but who is there, and the metrics.
    ``plugin`` is every site's, for studies whose model is one. ``followed`` are the metrics of every round,
    ``own_metrics`` those that others bring; all come after the last one, with intervals over ``bootstrap`` draws.
    ``finish``: the requester's local finish. ``works_out_isolation``: False where no policy demands any and nobody
    reads the figures, which cost more than training a small model.
    """

    erosion_applies: ErosionApplies = "next_round"
    policy: SitePolicy = USUAL_POLICY
    attendance: Attendance = EVERYBODY
    computing: Computing = ON_CPU
    rule: Rule | None = None
    model: nn.Module | None = None
    baseline: BaselineTable | None = None
    plugin: Plugin | None = None
    followed: frozenset[MetricName] = FOLLOWED
    own_metrics: OwnMetrics | None = None
    bootstrap: int = 0
    finish: FinishTable | None = None
    works_out_isolation: bool = True


USUAL: Final = Conditions()


@dataclass(frozen=True)
class Announced:
    """A round's announcement with its weight list."""

    announcement: Announcement
    weight_list: WeightList


@dataclass(frozen=True)
class RunState:
    """The state that moves from round to round.

    ``vector`` is the model, followed by a server optimiser's moments, float32[S * D]. ``alone_because`` is set once the
    shared part is over, ``alone_by`` where a clause of a policy ended it. ``class_totals`` are the summed class counts;
    ``counts_rounds`` the rounds that tried to sum them, which do not count among the study's. ``declined`` are sites
    that refused a list and are not listed again. ``personal`` are all sites' personal layers, the requester's first,
    float32[sites, P]; they move on whenever a site trains, whether or not the round is released. ``sums`` are the sums
    that were opened, ``kept`` what each site, the requester first, keeps of its own updates in them, float32[sums,
    sites, at most 4096]. ``list_kept`` counts the sums in a row by the last sum's list; ``exposing`` is what a site
    declined since then for isolation, ``too_few`` says that the last round of updates had no sum. ``measured_rounds``
    measured updates without summing them, or tried to, and do not count among the study's either; ``measure_tries`` of
    them failed since the last sum.
    """

    vector: Vector = field(repr=False)
    rule_state: RuleState
    memory: SiteMemory
    model_version: int = 0
    alone_because: str | None = None
    alone_by: Clause | None = None
    class_totals: tuple[int, ...] = ()
    counts_rounds: int = 0
    declined: tuple[str, ...] = ()
    personal: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32), repr=False)
    list_kept: int = 0
    measured_rounds: int = 0
    measure_tries: int = 0
    exposing: Candidate | None = None
    too_few: bool = False
    sums: tuple[SummedRow, ...] = ()
    kept: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0, 0), np.float32), repr=False)

    @property
    def rounds_apart(self) -> int:
        """Rounds so far that do not count among the study's."""
        return self.counts_rounds + self.measured_rounds


@dataclass(frozen=True)
class Run:
    """The constants of a run; ``model`` is the module that every site's vector is loaded into."""

    study: Study
    requester: SiteData
    contributors: tuple[SiteData, ...]
    rule: Rule
    model: nn.Module
    summing: Summing
    conditions: Conditions

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.contributors)

    @property
    def sites(self) -> tuple[SiteData, ...]:
        return (self.requester, *self.contributors)

    @property
    def training(self) -> Training:
        return Training(self.study, self.model, self.conditions.computing.device, self.conditions.plugin)

    @property
    def judge(self) -> Assessor:
        found, own = assessor(self.study, self.conditions.plugin, CPU), self.conditions.own_metrics
        return found if own is None else replace(found, own_metrics=own)

    def model_of(self, state: RunState) -> Vector:
        """The model within the state, float32[D]."""
        return model_part(state.vector, self.study.model_dimension)

    def personal_of(self, site: SiteData, state: RunState) -> Vector:
        """The site's personal layers, float32[P]."""
        return np.asarray(state.personal[(self.requester.name, *self.names).index(site.name)], dtype=np.float32)

    def with_personal(self, state: RunState, trained: Mapping[str, Vector]) -> RunState:
        """The state once the named sites have trained their personal layers."""
        rows = [trained.get(site.name, state.personal[row]) for row, site in enumerate(self.sites)]
        return replace(state, personal=np.stack(rows))

    def situation(self, state: RunState) -> Situation:
        """Return the next shared round's situation, as in the requester's agent; nobody is ranked or summarised."""
        return Situation(
            study=self.study,
            rule=self.rule,
            rule_state=state.rule_state,
            memory=state.memory,
            contributors=self.names,
            away=state.declined,
            model_version=state.model_version,
            least_isolation=self.conditions.policy.least_isolation,
            list_kept=state.list_kept,
            exposing=state.exposing,
            too_few=state.too_few,
            measure_tries=state.measure_tries,
            done=Done(counted=bool(state.class_totals) or not self.study.rule.name.counts_classes),
        )

    def purpose(self, state: RunState) -> Purpose:
        """Return the purpose of the next shared round."""
        return next_purpose(self.situation(state))

    def own_weight(self, site: SiteData, state: RunState) -> float | None:
        """The weight that the site gives itself; None where the list says it, and before the classes are counted."""
        if not self.study.rule.name.self_weighted or not self.purpose(state).plan.steps_model:
            return None
        largest = self.study.rule.largest_count or max(len(one.train) for one in self.sites)
        return own_weight(self.study, site, state.class_totals, largest)


S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Reached(Generic[S]):
    """The progress of a run after a round: all that the next round depends on, and the records so far."""

    state: S
    records: tuple[RoundRecord, ...] = ()


Progress: TypeAlias = Reached[RunState]
"""The progress of a study's run."""
AfterRound: TypeAlias = Callable[[Progress], None]


def round_updates(run: Run, state: RunState, sites: Sequence[SiteData], round_number: int) -> dict[str, ClippedUpdate]:
    """Every site's update by its name, from the model within ``state``.

    One gradient of one mini-batch is not batched: there is next to nothing to gain. Nor is a loss that compares
    examples, Cox's, or a plug-in's, whose code is not known, nor a model with batch
    norm, whose statistics one call would mix up; nor training with noise, which clips record by record.

    Raises: UnusableUpdate
    """
    study, model, computing = run.study, run.model_of(state), run.conditions.computing
    possible = batchable(study.task, run.conditions.plugin) and not has_statistics(run.model)
    if not (computing.batched and possible and study.training.update == "local_sgd" and study.record_noise is None):
        return {
            site.name: clipped_update(
                run.training, site, model, round_number, run.own_weight(site, state), run.personal_of(site, state)
            )
            for site in sites
        }
    seeds = [site_seed(study.seed or 0, site.name) for site in sites]
    batched = Batched(run.model, [site.train for site in sites], seeds, study.training, computing.device, study.task)
    personal = np.stack([run.personal_of(site, state) for site in sites])
    trained = batched.train(repeated(model, len(sites)), personal, round_number)
    return {
        site.name: clipped(study, trained.updates[row], run.own_weight(site, state), trained.personal[row])
        for row, site in enumerate(sites)
    }


WORSE_BY: Final = 1e4
"""A model whose loss is so many times the first model's (or 1, if that is more) has diverged."""
LONGER_BY: Final = 1e9
"""As is one whose parameters are so many times as long: float32 has no digits left for a step."""


def round_record(
    run: Run, state: RunState, round_number: int, kind: RoundKind, weights: tuple[ListedWeight, ...]
) -> RoundRecord:
    """Return what every round's record has: the list, the rule's weights and the model after it."""
    vector = run.model_of(state)
    load_site(run.model, vector, run.personal_of(run.requester, state))
    judge, train = run.judge, run.requester.train
    assessed = judge.assess(run.model, run.requester.test, train, run.conditions.followed)
    test, validation = assessed.evaluation, run.requester.validation
    validated = judge.assess(run.model, validation, train, run.conditions.followed) if len(validation) else NOTHING
    return RoundRecord(
        round=round_number,
        kind=kind,
        handed_out=weights,
        alphas=site_values((site.name, site.alpha) for site in state.rule_state.sites),
        requester_norm=0.0,
        took_part=(),
        clipped_share=0.0,
        test_accuracy=math.nan if test.accuracy is None else test.accuracy,
        test_loss=test.loss,
        class_accuracy=test.class_accuracy,
        model_norm=float(np.linalg.norm(vector.astype(np.float64))),
        validation_accuracy=validated.evaluation.accuracy,
        test_scores=assessed.scores,
        validation_scores=validated.scores,
    )


def final_scores(run: Run, state: RunState, samples: int) -> FinalScores:
    """All metrics of the run's last model on the requester's test part, with intervals over ``samples`` draws."""
    load_site(run.model, run.model_of(state), run.personal_of(run.requester, state))
    return run.judge.final_scores(run.model, run.requester.test, run.requester.train, samples, run.study.seed or 0)


def with_judgement(record: RoundRecord, judgement: Judgement) -> RoundRecord:
    """The record with everything that the requester opened."""
    changes = {
        "requester_norm": judgement.measured.requester_norm,
        "failed_check": judgement.failed,
        "not_selected": judgement.not_selected,
    }
    return record.model_copy(update=opened_values(judgement.measured) | changes)


def require_no_divergence(record: RoundRecord, first: RoundRecord) -> None:
    """Numbers may still be finite, and a gradient 0 because everything saturates: that is no local optimum.

    ``first`` is the model before round 1. Raises: UnusableUpdate
    """
    loss, length = record.test_loss, record.model_norm
    fine = loss <= WORSE_BY * max(1.0, first.test_loss) and length <= LONGER_BY * max(1.0, first.model_norm)
    if not fine and not (math.isnan(first.test_loss) and math.isfinite(length)):
        raise UnusableUpdate(
            f"round {record.round}: the model has diverged: its test loss is {loss:.3g} and its length {length:.3g}, "
            f"before round 1 they were {first.test_loss:.3g} and {first.model_norm:.3g}; take smaller learning rates"
        )
