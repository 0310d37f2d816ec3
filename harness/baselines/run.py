"""A whole run of a baseline in plain simulation: all sites weigh alike, and nobody's policy is asked.

Updates are clipped, averaged and applied as FedAvg's. Personalised algorithms are judged by the requester's personal
model. A run that is killed begins again: sites keep more between rounds than a study's checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from client_agent.learning.flat_vector import Vector, model_vector, personal_vector
from client_agent.learning.trainer import apply_aggregate
from client_agent.learning.training_seeds import site_seed
from client_agent.tasks.losses import training_loss
from harness.baselines.ditto import Ditto
from harness.baselines.fedprox import FedProx
from harness.baselines.pfedme import PFedMe
from harness.baselines.scaffold import Scaffold
from harness.baselines.site import Baseline, LocalProblem, SiteRound, require_plain_steps
from harness.baselines.tables import BaselineTable, DittoTable, FedProxTable, PFedMeTable
from harness.datasets.site_data import SiteData
from harness.engine.history import RoundKind, RoundRecord, RunEnd, RunHistory
from harness.engine.record import final_scores, require_no_divergence, round_record
from harness.engine.run_state import USUAL, AfterRound, Conditions, Progress, Run, RunState
from harness.engine.site_updates import ClippedUpdate, clipped
from harness.engine.summing import PlainSum
from harness.training.site_training import repeated
from protocol.errors import ConfigurationError
from protocol.policy.memory import SiteMemory
from protocol.policy.site_policy import SitePolicy
from protocol.rules.registry import rule_for
from protocol.wire.messages import RuleName, Study


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
