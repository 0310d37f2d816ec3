"""Rounds of a baseline in FedAvg's place: all sites count alike, and the requester is judged by the model it uses.

Updates are clipped, averaged and applied as a study's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from client_agent.learning.flat_vector import Vector, model_vector
from client_agent.learning.losses import training_loss
from client_agent.learning.sampling import site_seed
from harness.engine.algorithms import (
    BaselineTable,
    Kept,
    LocalProblem,
    require_no_statistics,
    require_plain_steps,
)
from harness.engine.history import RoundKind, RoundRecord
from harness.engine.run_state import Run, RunState, round_record
from harness.engine.updates import ClippedUpdate, clipped
from protocol.errors import ConfigurationError
from protocol.messages.control import RuleName, Study
from protocol.policy.memory import SiteMemory
from protocol.shared_model import plain_step


@dataclass(frozen=True, eq=False)
class SitesState:
    """All that moves from round to round.

    ``shared`` float32[D] is the model; ``own`` float32[S, D or 0] and ``mixing`` float64[S] are what the sites keep,
    ``common`` float32[D] what is known of that to everybody.
    """

    shared: Vector = field(repr=False)
    own: NDArray[np.float32] = field(repr=False)
    mixing: NDArray[np.float64] = field(repr=False)
    common: Vector = field(repr=False)

    def kept(self, place: int) -> Kept:
        """Return what the site at ``place`` keeps."""
        return Kept(self.own[place], float(self.mixing[place]))

    def keeping(self, kept: Sequence[Kept]) -> SitesState:
        return replace(self, own=np.stack([one.own for one in kept]), mixing=np.array([one.mixing for one in kept]))


def require_baseline(study: Study, model: nn.Module, name: str) -> None:
    """ConfigurationError where a study's rule, training or model is none that the baseline stands in for."""
    if study.rule.name is not RuleName.FEDAVG or study.rule.norm_bound is not None:
        raise ConfigurationError(f'{name} takes FedAvg\'s place: rule = {{ name = "fedavg" }}, without norm_bound')
    require_plain_steps(model, study.training, name)
    require_no_statistics(model, name)


@dataclass(frozen=True)
class BaselineRounds:
    """A baseline's rounds, each with the record that a study's round has."""

    run: Run
    baseline: BaselineTable

    def start(self) -> SitesState:
        """Return the state before round 1; the run's model has its first values. Raises: as :func:`require_baseline`"""
        require_baseline(self.run.study, self.run.model, self.baseline.name)
        first, nothing = model_vector(self.run.model), np.zeros((0, 0), np.float32)
        state = SitesState(first, nothing, np.zeros(0), np.zeros_like(first))
        return state.keeping([self.baseline.first(first) for _ in self.run.sites])

    def round(self, state: SitesState, number: int) -> tuple[SitesState, RoundRecord]:
        """Train who is there, average the updates alike and apply them. Raises: UnusableUpdate"""
        run, kept = self.run, [state.kept(place) for place in range(len(self.run.sites))]
        there, updates = self._present(number), []
        for place in there:
            problem = self._problem(place, number)
            update, kept[place] = self.baseline.train(problem, state.shared, kept[place], state.common)
            updates.append(clipped(run.study, update, None, np.zeros(0, np.float32)))
        common = state.common
        if self.baseline.keeps_common:
            moved = sum(kept[place].own.astype(np.float64) - state.own[place] for place in there)
            common = (common + moved / len(run.sites)).astype(np.float32)
        after = replace(state, shared=self._applied(state.shared, updates), common=common).keeping(kept)
        sums = {
            "took_part": tuple(run.sites[place].name for place in there[1:]),
            "requester_norm": updates[0].norm,
            "clipped_share": sum(update.was_clipped for update in updates) / len(updates),
            "sum_of_weights": float(len(updates)),
        }
        record = round_record(run, self.shown(after), number, RoundKind.RELEASED, ())
        return after, record.model_copy(update=sums)

    def shown(self, state: SitesState) -> RunState:
        """The requester's model as a study's state has it; the rule weighs nobody."""
        layers = np.zeros((len(self.run.sites), 0), np.float32)
        vector = self.baseline.used(state.shared, state.kept(0))
        return RunState(vector, self.run.rule.init(()), SiteMemory(), personal=layers)

    def _present(self, number: int) -> list[int]:
        """Return who is there in a round, by place; the requester always."""
        who = self.run.conditions.attendance
        others = enumerate(self.run.names, start=1)
        return [0, *(at for at, name in others if who.has_joined(name, number) and who.present(name, number))]

    def _problem(self, place: int, number: int) -> LocalProblem:
        study, site = self.run.study, self.run.sites[place]
        loss = training_loss(study.training, site.train.y, study.task)
        seed = site_seed(study.seed or 0, site.name)
        return LocalProblem(self.run.model, site.train, study.training, loss, number, seed)

    def _applied(self, vector: Vector, updates: Sequence[ClippedUpdate]) -> Vector:
        total = sum((update.values for update in updates), np.zeros(len(vector), np.float64))
        mean: Vector = (total / len(updates)).astype(np.float32)
        return plain_step(vector, mean, self.run.study.training.server_learning_rate)
