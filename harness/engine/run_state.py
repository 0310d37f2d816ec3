"""What a run in one process keeps: fixed over the run, and moving from round to round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.at_requester.finish_table import FinishTable
from client_agent.learning.evaluation import Assessor, OwnMetrics
from client_agent.learning.flat_vector import Vector
from client_agent.learning.plugin import Plugin, assessor
from client_agent.scoring.score import FOLLOWED, MetricName
from harness.datasets.site_data import SiteData
from harness.engine.history import RoundRecord
from harness.engine.site_updates import CPU, Training, own_weight
from harness.engine.summing import Summing
from harness.training.device import ON_CPU, Computing
from protocol.clauses import Clause
from protocol.policy.candidates import Candidate
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.policy.summed_rows import SummedRow
from protocol.rounds.planning import Done, Situation, next_purpose
from protocol.rules.interface import Rule, RuleState
from protocol.rules.server_optimiser import model_part
from protocol.wire.messages import Announcement, Purpose, Study, WeightList

ErosionApplies = Literal["next_round", "same_round"]


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


@dataclass(frozen=True)
class Conditions:
    """What a run in one process is under beside its study; ``policy`` is every site's, the default one for None.

    ``rule`` and ``model`` (with its first values) are ones that studies do not know, in place of the study's own, for
    plain runs. ``plugin`` is every site's, for studies whose model is one. ``followed`` are the metrics of every
    round, ``own_metrics`` those that others bring; all come after the last one, with intervals over ``bootstrap``
    draws. ``finish``: the requester's local finish. ``works_out_isolation``: False where no policy demands any and
    nobody reads the figures, which cost more than training a small model.
    """

    erosion_applies: ErosionApplies = "next_round"
    policy: SitePolicy | None = None
    attendance: Attendance = EVERYBODY
    computing: Computing = ON_CPU
    rule: Rule | None = None
    model: nn.Module | None = None
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
    """What moves from round to round.

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
    """What stays the same over a run; ``model`` is the module that every site's vector is loaded into."""

    study: Study
    requester: SiteData
    contributors: tuple[SiteData, ...]
    rule: Rule
    erosion_applies: ErosionApplies
    policy: SitePolicy
    attendance: Attendance
    model: nn.Module
    summing: Summing
    computing: Computing = ON_CPU
    plugin: Plugin | None = None
    followed: frozenset[MetricName] = FOLLOWED
    own_metrics: OwnMetrics | None = None
    works_out_isolation: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.contributors)

    @property
    def sites(self) -> tuple[SiteData, ...]:
        return (self.requester, *self.contributors)

    @property
    def training(self) -> Training:
        """With what every site trains."""
        return Training(self.study, self.model, self.computing.device, self.plugin)

    @property
    def judge(self) -> Assessor:
        """By what the requester's model is judged."""
        found = assessor(self.study, self.plugin, CPU)
        return found if self.own_metrics is None else replace(found, own_metrics=self.own_metrics)

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
        """What the next shared round is planned by, as in the requester's agent; nobody is ranked or summarised."""
        return Situation(
            study=self.study,
            rule=self.rule,
            rule_state=state.rule_state,
            memory=state.memory,
            contributors=self.names,
            away=state.declined,
            model_version=state.model_version,
            least_isolation=self.policy.least_isolation,
            list_kept=state.list_kept,
            exposing=state.exposing,
            too_few=state.too_few,
            measure_tries=state.measure_tries,
            done=Done(counted=bool(state.class_totals) or not self.study.rule.name.counts_classes),
        )

    def purpose(self, state: RunState) -> Purpose:
        """What the next shared round is for."""
        return next_purpose(self.situation(state))

    def own_weight(self, site: SiteData, state: RunState) -> float | None:
        """The weight that the site gives itself; None where the list says it, and before the classes are counted."""
        if not self.study.rule.name.self_weighted or not self.purpose(state).plan.steps_model:
            return None
        largest = self.study.rule.largest_count or max(len(one.train) for one in self.sites)
        return own_weight(self.study, site, state.class_totals, largest)


@dataclass(frozen=True, eq=False)
class Progress:
    """Where a run stands after a round: all that the next round depends on, and the records so far."""

    state: RunState
    records: tuple[RoundRecord, ...]


AfterRound: TypeAlias = Callable[[Progress], None]
