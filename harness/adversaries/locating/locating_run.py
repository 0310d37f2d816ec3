"""A study's true updates, and what a requester with accomplices makes of their distances."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import SupportsFloat

import numpy as np

from harness.adversaries.attacked_study import Setting
from harness.adversaries.locating.located import (
    RIDGES,
    Reals,
    Round,
    expected_error,
    located,
    located_over,
    relative_error,
)
from harness.adversaries.locating.locating_line import Located, LocatingLine, Points
from harness.adversaries.recording import OpenedSum, Recorder
from harness.datasets.registry import load_data
from harness.engine.loop import run_rounds
from harness.engine.run_state import Conditions
from harness.engine.training import one_thread
from harness.engine.updates import PlainSum
from harness.simulate.case import Case
from harness.simulate.case_run import request_for
from harness.simulate.study_files import simulated_study
from harness.versions import versions
from protocol.errors import ConfigurationError

_DIGITS = 4


@dataclass(frozen=True)
class LocatingRun:
    """A study whose every ``every``-th sum counts as a measured round; in it all pairs are opened."""

    case: Case
    variant: str
    setting: Setting
    requester: str
    seed: int
    colluders: Sequence[int] = (0, 1, 2)
    every: int = 1
    data: Path | None = None
    rounds: int | None = None

    def line(self) -> LocatingLine:
        """Run and locate. Raises: ConfigurationError for data or settings that do not fit, or too few honest sites"""
        begun = time.monotonic()
        with one_thread():
            sums, dimension = self._run()
        measured = sums[:: self.every]
        return LocatingLine(
            study=self.case.name,
            variant=self.variant,
            setting=self.setting.name,
            requester=self.requester,
            seed=self.seed,
            sites=len(sums[0].updates),
            parameters=dimension,
            located=tuple(self._located(measured, dimension)),
            seconds=round(time.monotonic() - begun, 3),
            versions={one.name: one.version for one in versions()},
        )

    def _run(self) -> tuple[list[OpenedSum], int]:
        federation = load_data(request_for(self.case, self.data, self.requester, self.seed))
        table = self.setting.of(self.case.variant(self.variant), self.case.source)
        study = simulated_study(table, self.case.source, federation, self.seed)
        if self.rounds is not None:
            study = study.model_copy(update={"rounds": min(self.rounds, study.rounds)})
        recorder = Recorder(PlainSum())
        policy = self.setting.policy(self.case.table.policy.policy())
        run_rounds(study, federation.sites, recorder, Conditions(policy=policy), protection="plain")
        everybody = [one for one in recorder.sums if len(one.updates) == len(federation.sites)]
        if not everybody:
            raise ConfigurationError(f"variant {self.variant!r} has no sum with everybody in it: choose fedavg")
        return everybody, study.model_dimension

    def _located(self, measured: Sequence[OpenedSum], dimension: int) -> Iterator[Located]:
        contributors = [site for site in measured[0].updates if site != measured[0].requester]
        for count in self.colluders:
            if not 0 <= count < len(contributors):
                raise ConfigurationError(f"{count} colluders leave no honest contributor among {len(contributors)}")
            for kind in Points if count else (Points.HONEST,):
                accomplices, honest = contributors[:count], contributors[count:]
                yield _summary(measured, honest, self._points(measured, accomplices, dimension, kind), kind)

    def _points(
        self, measured: Sequence[OpenedSum], accomplices: Sequence[str], dimension: int, kind: Points
    ) -> list[Reals]:
        """One float64[c, D] a round; random points are about the requester's update."""
        if kind is Points.HONEST:
            return [_rows([one.updates[site] for site in accomplices], dimension) for one in measured]
        drawn = np.random.default_rng([self.seed, len(accomplices)])
        found = []
        for one in measured:
            points = _update(one, one.requester) + drawn.normal(size=(len(accomplices), dimension))
            points[:1] *= kind is not Points.ZEROS
            found.append(points)
        return found


def _summary(measured: Sequence[OpenedSum], honest: Sequence[str], points: Sequence[Reals], kind: Points) -> Located:
    found = _Errors()
    origins = np.stack([_update(one, one.requester) for one in measured])
    means = [np.mean([_update(one, site) for site in honest], axis=0) for one in measured]
    for site in honest:
        truth = [_update(one, site) for one in measured]
        found.add([Round(*known) for known in zip(origins, points, truth, strict=True)], means)
    known = len(points[0])
    return Located(
        colluders=known,
        points=kind,
        rounds=len(measured),
        single=_rounded(np.median(found.single)),
        summed=_rounded(np.median(found.summed)),
        together=_rounded(min(np.median(errors) for errors in found.together.values())),
        true=_rounded(min(np.median(errors) for errors in found.true.values())),
        offset=_rounded(np.sqrt(np.mean(found.offsets))),
        expected=_rounded(expected_error(origins.shape[1], known)),
    )


@dataclass(frozen=True, eq=False)
class _Errors:
    """Of every honest site and round, by what the estimate is made of, ``together`` and ``true`` by ridge.

    ``offsets`` are squares against ||g - g_0||.
    """

    single: list[float] = field(default_factory=list)
    summed: list[float] = field(default_factory=list)
    together: dict[float, list[float]] = field(default_factory=lambda: {ridge: [] for ridge in RIDGES})
    true: dict[float, list[float]] = field(default_factory=lambda: {ridge: [] for ridge in RIDGES})
    offsets: list[float] = field(default_factory=list)

    def add(self, rounds: Sequence[Round], means: Sequence[Reals]) -> None:
        """One site's rounds; ``means`` are the honest sites' mean updates, float64[D] each."""
        for one, mean in zip(rounds, means, strict=True):
            found = located(one)
            self.single.append(relative_error(found, one.update))
            self.offsets.append(relative_error(found - one.origin, one.offset) ** 2)
            self.summed.append(relative_error(located(replace(one, points=np.vstack([one.points, mean]))), one.update))
        origins, moved = np.stack([one.origin for one in rounds]), np.stack([one.offset for one in rounds])
        for by_ridge, covariance in ((self.together, origins @ origins.T), (self.true, moved @ moved.T)):
            for ridge, errors in by_ridge.items():
                estimates = located_over(rounds, covariance, ridge)
                errors += [relative_error(found, one.update) for found, one in zip(estimates, rounds, strict=True)]


def _update(one: OpenedSum, site: str) -> Reals:
    return one.updates[site].astype(np.float64)


def _rows(vectors: Sequence[object], dimension: int) -> Reals:
    return np.asarray(vectors, dtype=np.float64).reshape(len(vectors), dimension)


def _rounded(value: SupportsFloat) -> float:
    return float(f"{float(value):.{_DIGITS}g}")
