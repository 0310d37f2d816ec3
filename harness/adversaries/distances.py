r"""Where an update is, from its distances to known points.

The requester knows g_0 and c accomplices' points p_1 .. p_c. With x = g - g_0 and b_j = p_j - g_0, distances tell

        <x, b_j> = (||g - g_0||^2 + ||b_j||^2 - ||g - p_j||^2) / 2

so the part of x in the span of the b_j exactly, and of the rest its length: g is somewhere on a sphere at right angles
to that span, and its centre is the estimate of least expected error. If x points anywhere with equal chance,

        E ||error||^2 = (1 - c / D) ||x||^2              in D dimensions

Distances among other honest sites turn with that sphere and say nothing of where on it they are. Where a sum of the
same updates is opened too, their mean is one known point more, and no random one: each of them is part of it.

An accomplice that sends zeros is worth most: then the centre is the projection on the span of g_0 and the others, no
farther off than guessing nothing.

Over several rounds x_r moves. With a prior cov(x_r, x_s) = K_rs I, all rounds' products are one linear system, and the
estimate is its Gaussian mean. With K of ones (nothing moves) R rounds are R c points: the error is 0 from R c = D on.
Since K is a guess, the system is solved with a ridge: what it cannot explain is not to blow up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, SupportsFloat

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from harness.adversaries.attacked_study import Setting
from harness.adversaries.recording import OpenedSum, Recorder
from harness.datasets.registry import load_data
from harness.engine.loop import run_rounds
from harness.engine.run_state import Conditions
from harness.engine.summing import PlainSum
from harness.simulation.case import Case
from harness.simulation.case_run import request_for
from harness.simulation.simulated_study import simulated_study
from harness.training.device import one_thread
from harness.versions import versions
from protocol.errors import ConfigurationError

Reals = NDArray[np.float64]
RIDGES = (1e-9, 1e-5, 1e-2, 1.0)
"""Of the mean product's variance."""
_NONE = 1e-10
"""A direction shorter than this, against the longest, is none."""


def expected_error(dimension: int, known: int) -> float:
    """sqrt(1 - known / D): the root of the mean squared error of x, against its length, once directions are random."""
    return math.sqrt(max(0.0, 1 - known / dimension))


@dataclass(frozen=True, eq=False)
class Round:
    """One measured round: ``origin`` g_0 float64[D], ``points`` of accomplices float64[c, D], one site's ``update``.

    Of ``update`` the estimates use its distances alone.
    """

    origin: Reals = field(repr=False)
    points: Reals = field(repr=False)
    update: Reals = field(repr=False)

    @property
    def offset(self) -> Reals:
        """x: the update as the requester looks for it."""
        return np.asarray(self.update - self.origin, dtype=np.float64)

    def directions(self) -> tuple[Reals, Reals]:
        """An orthonormal basis of the known span, float64[k, D], and the products of x with it by distances."""
        apart = self.points - self.origin
        squares = np.sum((self.update - self.points) ** 2, axis=1)
        products = (np.sum(self.offset**2) + np.sum(apart**2, axis=1) - squares) / 2
        if not len(apart):
            return apart, products
        left, lengths, basis = np.linalg.svd(apart, full_matrices=False)
        kept = lengths > _NONE * max(float(lengths[0]), _NONE)
        return basis[kept], (left.T @ products)[kept] / lengths[kept]


def located(one: Round) -> Reals:
    """The estimate of the update from its round alone, float64[D]."""
    basis, products = one.directions()
    return np.asarray(one.origin + products @ basis, dtype=np.float64)


def located_over(rounds: Sequence[Round], covariance: Reals, ridge: float) -> Reals:
    """The estimates of every round's update from all rounds, float64[R, D]; ``covariance`` is K, float64[R, R]."""
    found = [one.directions() for one in rounds]
    of_round = np.concatenate([np.full(len(products), place) for place, (_, products) in enumerate(found)])
    origins = np.stack([one.origin for one in rounds])
    if not len(of_round):
        return origins
    basis, products = np.concatenate([b for b, _ in found]), np.concatenate([p for _, p in found])
    system = covariance[np.ix_(of_round, of_round)] * (basis @ basis.T)
    system += ridge * np.trace(system) / len(system) * np.eye(len(system))
    solved = np.linalg.lstsq(system, products, rcond=_NONE)[0]
    return np.asarray(origins + (covariance[:, of_round] * solved) @ basis, dtype=np.float64)


def relative_error(estimate: Reals, truth: Reals) -> float:
    """||estimate - truth|| / ||truth||."""
    return float(np.linalg.norm(estimate - truth) / np.linalg.norm(truth))


class Points(StrEnum):
    """What accomplices send: their honest updates, random points, or random points but for one that sends zeros."""

    HONEST = "honest"
    RANDOM = "random"
    ZEROS = "zeros"


FORMAT: Final = "moiety-distances/1"


class Located(BaseModel):
    """Medians over honest sites and rounds of ||estimate - g|| / ||g||, but for ``offset`` and ``expected``.

    ``colluders`` accomplices send ``points``; ``rounds`` were measured. ``single``: from each round alone; ``summed``:
    from it and a sum of the same updates; ``together``: from all rounds, updates moving as the requester's own do;
    ``true``: as each site's own do, which nobody knows, both with the ridge that serves best, which an attacker has to
    guess. ``offset`` is the root mean square of ``single``'s error against ||g - g_0||, ``expected`` what random
    directions give.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    colluders: int
    points: Points
    rounds: int
    single: float
    summed: float
    together: float
    true: float
    offset: float
    expected: float


class LocatingLine(BaseModel):
    """One study, its updates located by every number of colluders."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    study: str
    variant: str
    setting: str
    requester: str
    seed: int
    sites: int
    parameters: int
    located: tuple[Located, ...]
    seconds: float
    versions: dict[str, str]


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
