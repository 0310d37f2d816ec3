"""A study with liars and the same one without, side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsFloat

import numpy as np

from harness.adversaries.attacked_study import Setting
from harness.adversaries.gaining.lies import Lie
from harness.adversaries.gaining.lying_line import LyingLine
from harness.adversaries.gaining.lying_sum import LyingSum
from harness.datasets.registry import load_data
from harness.datasets.site_data import Federation
from harness.engine.history import RunHistory
from harness.engine.loop import run_rounds
from harness.engine.run_state import Conditions
from harness.engine.training import one_thread
from harness.engine.updates import PlainSum
from harness.simulate.case import Case
from harness.simulate.case_run import request_for
from harness.simulate.study_files import simulated_study
from harness.versions import versions
from protocol.errors import ConfigurationError
from protocol.first_model import first_model
from protocol.wire.messages import Study

_DIGITS = 6


@dataclass(frozen=True)
class LyingRun:
    """One study, to be run honestly and under each of ``lies``; ``liars`` contributors lie, which ones goes by seed."""

    case: Case
    variant: str
    setting: Setting
    requester: str
    seed: int
    lies: Sequence[Lie]
    liars: int = 1
    data: Path | None = None
    rounds: int | None = None

    def lines(self) -> Iterator[LyingLine]:
        """The honest study first. Raises: ConfigurationError for data or settings that do not fit"""
        with one_thread():
            yield from self._lines()

    def _lines(self) -> Iterator[LyingLine]:
        federation: Federation = load_data(request_for(self.case, self.data, self.requester, self.seed))
        table = self.setting.of(self.case.variant(self.variant), self.case.source)
        study = simulated_study(table, self.case.source, federation, self.seed)
        if self.rounds is not None:
            study = study.model_copy(update={"rounds": min(self.rounds, study.rounds)})
        liars = self._chosen(federation)
        honest = None
        for lie in (None, *self.lies):
            begun, summing = time.monotonic(), LyingSum(PlainSum(), liars, lie)
            policy = self.setting.policy(self.case.table.policy.policy())
            conditions = Conditions(policy=policy, finish=table.finish)
            history = run_rounds(study, federation.sites, summing, conditions, protection="plain")
            honest = honest or history
            yield self._line(study, history, honest, summing, lie, liars, time.monotonic() - begun)

    def _chosen(self, federation: Federation) -> tuple[str, ...]:
        names = federation.names_of_sites[1:]
        if not 0 < self.liars <= len(names):
            raise ConfigurationError(f"{self.liars} liars: choose 1 to {len(names)} of the contributors")
        return tuple(names[(self.seed + place) % len(names)] for place in range(self.liars))

    def _line(
        self,
        study: Study,
        history: RunHistory,
        honest: RunHistory,
        summing: LyingSum,
        lie: Lie | None,
        liars: tuple[str, ...],
        seconds: float,
    ) -> LyingLine:
        begun = first_model(study)
        return LyingLine(
            study=self.case.name,
            variant=self.variant,
            setting=self.setting.name,
            requester=self.requester,
            seed=self.seed,
            sites=len(history.contributors) + 1,
            liars=liars,
            lie=lie,
            rule=history.rule.value,
            end=history.end.value,
            released=history.shared_rounds,
            clip_norm=study.parameters.clip_norm,
            weight=_rounded(np.mean(summing.weight)) if summing.weight else 0.0,
            moved=_rounded(np.linalg.norm(history.final_model - honest.final_model)),
            path=_rounded(np.linalg.norm(honest.final_model - begun)),
            log_loss=_rounded(history.rounds[-1].test_loss),
            honest_log_loss=_rounded(honest.rounds[-1].test_loss),
            seconds=round(seconds, 3),
            versions={one.name: one.version for one in versions()},
        )


def _rounded(value: SupportsFloat) -> float:
    return float(f"{float(value):.{_DIGITS}g}")
