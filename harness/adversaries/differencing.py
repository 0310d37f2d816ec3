"""A study in which one site is away at the second sum, and the requester subtracts.

The study is run twice over the same draws: once with everybody, to see which rounds sum (a rule may measure in rounds
of its own) and who has most weight in the first; then with that site away at the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from harness.adversaries.attacked_study import AttackedStudy, Line, OpenedSum, Recorder, rounded, timed
from harness.adversaries.reconstruction import Prior, Reconstruction
from harness.datasets.site_data import Federation
from harness.engine.history import RunHistory
from harness.engine.run_state import EVERYBODY, Attendance
from harness.engine.updates import PlainSum
from protocol.errors import ConfigurationError
from protocol.messages.control import Study

FORMAT: Final = "moiety-differencing/1"
_DIGITS: Final = 5
DifferencedKey: TypeAlias = tuple[str, str, str, str, int]


class DifferencedLine(Line):
    """``site`` was in the first sum and away at the second; errors are of its update in the first, relative to its
    length: ``difference`` of the two sums, the requester's part taken out, over the site's weight; the others by what
    the attacker takes the sites' updates to do (:class:`Prior`).

    ``predicted`` is the least isolation that anybody worked out before the second sum, about whomever's update.
    """

    format: str = FORMAT
    study: str
    variant: str
    setting: str
    requester: str
    site: str
    seed: int
    rule: str
    sites: int
    parameters: int
    weight: float
    predicted: float
    difference: float
    average: float
    own: float
    fitted: float
    true: float
    seconds: float

    @property
    def key(self) -> DifferencedKey:
        """The study's name, variant, setting, requester and seed."""
        return (self.study, self.variant, self.setting, self.requester, self.seed)

    @property
    def achieved(self) -> float:
        """The least error of all estimates that the requester can make."""
        return min(self.difference, self.average, self.own, self.fitted)


_SUMS: Final = 2


@dataclass(frozen=True)
class DifferencedRun:
    """One study, of two sums; the site with the largest weight is away at the second, of equal ones it goes by seed."""

    attacked: AttackedStudy

    @property
    def key(self) -> DifferencedKey:
        """As the line's that comes of it."""
        of = self.attacked
        return (of.case.name, of.variant, of.setting.name, of.requester or "", of.seed)

    def line(self) -> DifferencedLine:
        """Raises: ConfigurationError for data or settings that do not fit, and where there were no two sums"""
        with timed() as seconds:
            of = self.attacked
            federation = of.federation()
            study = of.study(federation).model_copy(update={"rounds": _SUMS})
            whole = self._run(study, federation, EVERYBODY)[1]
            turned = of.contributors_in_turn(federation)
            site = max(turned, key=lambda name: whole[0].weights.get(name, 0.0))
            away = Attendance(missed=frozenset({(whole[1].round, site)}))
            history, sums = self._run(study, federation, away)
            requester = federation.requester.name
            errors = {prior: Reconstruction((requester,), prior).errors(sums)[site][0] for prior in Prior}
            return DifferencedLine(
                study=of.case.name,
                variant=of.variant,
                setting=of.setting.name,
                requester=requester,
                site=site,
                seed=of.seed,
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
                seconds=seconds(),
            )

    def _run(self, study: Study, federation: Federation, attendance: Attendance) -> tuple[RunHistory, list[OpenedSum]]:
        recorder = Recorder(PlainSum())
        history = self.attacked.run(study, federation, recorder, attendance=attendance)
        if len(recorder.sums) < _SUMS:
            name, found = f"{self.attacked.case.name}, {self.attacked.variant}", len(recorder.sums)
            raise ConfigurationError(f"{name}: {found} sums were opened, two are needed")
        return history, recorder.sums


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
    return float("nan") if value is None else rounded(value, _DIGITS)
