"""A study in which one site is away at the second sum, and the requester subtracts.

The study is run twice over the same draws: once with everybody, to see which rounds sum (a rule may measure in rounds
of its own) and who has most weight in the first; then with that site away at the second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from harness.adversaries.attacked_study import Setting
from harness.adversaries.differencing.lines import DifferencedKey, DifferencedLine
from harness.adversaries.reconstruction import Prior, Reconstruction
from harness.adversaries.recording import OpenedSum, Recorder
from harness.datasets.registry import load_data
from harness.datasets.site_data import SiteData
from harness.engine.history import RunHistory
from harness.engine.loop import run_rounds
from harness.engine.run_state import EVERYBODY, Attendance, Conditions
from harness.engine.training import one_thread
from harness.engine.updates import PlainSum
from harness.simulate.case import Case
from harness.simulate.case_run import request_for
from harness.simulate.study_files import simulated_study
from protocol.errors import ConfigurationError
from protocol.wire.messages import Study

_DIGITS: Final = 5
_SUMS: Final = 2


@dataclass(frozen=True)
class DifferencedRun:
    """One study, of two sums; the site with the largest weight is away at the second, of equal ones it goes by seed."""

    case: Case
    variant: str
    setting: Setting
    requester: str
    seed: int
    data: Path | None = None

    @property
    def key(self) -> DifferencedKey:
        """As the line's that comes of it."""
        return (self.case.name, self.variant, self.setting.name, self.requester, self.seed)

    def line(self) -> DifferencedLine:
        """Raises: ConfigurationError for data or settings that do not fit, and where there were no two sums"""
        with one_thread():
            return self._line(time.monotonic())

    def _line(self, begun: float) -> DifferencedLine:
        federation = load_data(request_for(self.case, self.data, self.requester, self.seed))
        table = self.setting.of(self.case.variant(self.variant), self.case.source)
        study = simulated_study(table, self.case.source, federation, self.seed).model_copy(update={"rounds": _SUMS})
        whole = self._run(study, federation.sites, EVERYBODY)[1]
        site = self._chosen(whole[0], federation.names_of_sites[1:])
        away = Attendance(missed=frozenset({(whole[1].round, site)}))
        history, sums = self._run(study, federation.sites, away)
        errors = {prior: Reconstruction((self.requester,), prior).errors(sums)[site][0] for prior in Prior}
        return DifferencedLine(
            study=self.case.name,
            variant=self.variant,
            setting=self.setting.name,
            requester=self.requester,
            site=site,
            seed=self.seed,
            rule=history.rule.value,
            sites=len(federation.sites),
            parameters=study.parameters.dimension,
            weight=_rounded(sums[0].weights[site]),
            predicted=_rounded(_predicted(history, sums[1].round)),
            difference=_rounded(difference_error(sums, site)),
            average=_rounded(errors[Prior.AVERAGE]),
            own=_rounded(errors[Prior.OWN]),
            fitted=_rounded(errors[Prior.FITTED]),
            true=_rounded(errors[Prior.TRUE]),
            seconds=round(time.monotonic() - begun, 3),
        )

    def _run(
        self, study: Study, sites: Sequence[SiteData], attendance: Attendance
    ) -> tuple[RunHistory, list[OpenedSum]]:
        recorder = Recorder(PlainSum())
        policy = self.setting.policy(self.case.table.policy.policy())
        conditions = Conditions(policy=policy, attendance=attendance)
        history = run_rounds(study, sites, recorder, conditions, protection="plain")
        if len(recorder.sums) < _SUMS:
            raise ConfigurationError(
                f"{self.case.name}, {self.variant}: {len(recorder.sums)} sums were opened, two are needed"
            )
        return history, recorder.sums

    def _chosen(self, first: OpenedSum, names: tuple[str, ...]) -> str:
        turned = [names[(self.seed + place) % len(names)] for place in range(len(names))]
        return max(turned, key=lambda name: first.weights.get(name, 0.0))


def difference_error(sums: list[OpenedSum], site: str) -> float:
    """||(s_1 - s_2) / w - g|| / ||g|| for the site's update g in the first sum; s without the requester's own part.

    Requires: two sums, the first with the site
    """
    left = [one.total - one.weights[one.requester] * one.updates[one.requester] for one in sums]
    truth = sums[0].updates[site].astype(np.float64)
    guess = (left[0] - left[1]) / sums[0].weights[site]
    return float(np.linalg.norm(guess - truth) / np.linalg.norm(truth))


def _predicted(history: RunHistory, number: int) -> float:
    record = next(one for one in history.rounds if one.round == number)
    return min(one.value for one in record.isolation)


def _rounded(value: float | None) -> float:
    return float("nan") if value is None else float(f"{value:.{_DIGITS}g}")
