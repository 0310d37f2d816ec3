r"""Locate an update by its distances to known points.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np

from harness.attack.attacked_study import (
    AttackedStudy,
    Line,
    OpenedSum,
    Reals,
    Recorder,
    line_of,
    relative_error,
    rounded,
    timed,
)
from protocol.errors import ConfigurationError

RIDGES = (1e-9, 1e-5, 1e-2, 1.0)
"""Parts of the mean product's variance."""
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


# --- a study's updates, located ---------------------------------------------------------------------------------------


class Points(StrEnum):
    """Points that accomplices send: honest updates, random points, or random points but for one that sends zeros."""

    HONEST = "honest"
    RANDOM = "random"
    ZEROS = "zeros"


FORMAT: Final = "moiety-distances/1"
_DIGITS: Final = 4


class Located(Line):
    """Medians over honest sites and rounds of ||estimate - g|| / ||g||, but for ``offset`` and ``expected``.

    ``colluders`` accomplices send ``points``; ``rounds`` were measured. ``single``: from each round alone; ``summed``:
    from it and a sum of the same updates; ``together``: from all rounds, updates moving as the requester's own do;
    ``true``: as each site's own do, which nobody knows, both with the ridge that serves best, which an attacker has to
    guess. ``offset`` is the root mean square of ``single``'s error against ||g - g_0||, ``expected`` what random
    directions give.
    """

    colluders: int
    points: Points
    rounds: int
    single: float
    summed: float
    together: float
    true: float
    offset: float
    expected: float


class LocatingLine(Line):
    """One study, its updates located by every number of colluders."""

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


def located_line(of: AttackedStudy, colluders: Sequence[int] = (0, 1, 2), every: int = 1) -> LocatingLine:
    """Run a study and locate its updates; every ``every``-th sum counts as a measured round with all pairs opened.

    Raises: ConfigurationError for data or settings that do not fit, or too few honest sites
    """
    with timed() as seconds:
        federation = of.federation()
        study, recorder = of.study(federation), Recorder()
        history = of.run(study, federation, recorder)
        sums = [one for one in recorder.sums if len(one.updates) == len(federation.sites)]
        if not sums:
            raise ConfigurationError(f"variant {of.variant!r} has no sum with everybody in it: choose fedavg")
        found = tuple(_located(sums[::every], colluders, of.seed))
        return line_of(LocatingLine, of, history, parameters=study.model_dimension, located=found, seconds=seconds())


def _located(measured: Sequence[OpenedSum], colluders: Sequence[int], seed: int) -> Iterator[Located]:
    contributors = [site for site in measured[0].updates if site != measured[0].requester]
    for count in colluders:
        if not 0 <= count < len(contributors):
            raise ConfigurationError(f"{count} colluders leave no honest contributor among {len(contributors)}")
        for kind in Points if count else (Points.HONEST,):
            yield _summary(measured, contributors[count:], _points(measured, contributors[:count], kind, seed), kind)


def _points(measured: Sequence[OpenedSum], accomplices: Sequence[str], kind: Points, seed: int) -> list[Reals]:
    """One float64[c, D] a round; random points are about the requester's update."""
    drawn = np.random.default_rng([seed, len(accomplices)])
    found = []
    for one in measured:
        origin = _update(one, one.requester)
        if kind is Points.HONEST:
            points = np.array([_update(one, site) for site in accomplices]).reshape(len(accomplices), origin.size)
        else:
            points = origin + drawn.normal(size=(len(accomplices), origin.size))
            points[:1] *= kind is not Points.ZEROS
        found.append(points)
    return found


def _summary(measured: Sequence[OpenedSum], honest: Sequence[str], points: Sequence[Reals], kind: Points) -> Located:
    """The medians over every honest site and round; ``together`` and ``true`` with the ridge that serves best."""
    single, summed, offsets = list[float](), list[float](), list[float]()
    over_all = {(covariance, ridge): list[float]() for covariance in ("together", "true") for ridge in RIDGES}
    origins = np.stack([_update(one, one.requester) for one in measured])
    means = [np.mean([_update(one, site) for site in honest], axis=0) for one in measured]
    for site in honest:
        rounds = [Round(*known) for known in zip(origins, points, (_update(m, site) for m in measured), strict=True)]
        for one, mean in zip(rounds, means, strict=True):
            found = located(one)
            single.append(relative_error(found, one.update))
            offsets.append(relative_error(found - one.origin, one.offset) ** 2)
            summed.append(relative_error(located(replace(one, points=np.vstack([one.points, mean]))), one.update))
        moved = np.stack([one.offset for one in rounds])
        covariances = {"together": origins @ origins.T, "true": moved @ moved.T}
        for (covariance, ridge), errors in over_all.items():
            estimates = located_over(rounds, covariances[covariance], ridge)
            errors += [relative_error(found, one.update) for found, one in zip(estimates, rounds, strict=True)]
    known = len(points[0])
    best = {of: min(np.median(over_all[of, ridge]) for ridge in RIDGES) for of in ("together", "true")}
    return Located(
        colluders=known,
        points=kind,
        rounds=len(measured),
        single=rounded(np.median(single), _DIGITS),
        summed=rounded(np.median(summed), _DIGITS),
        **{of: rounded(error, _DIGITS) for of, error in best.items()},
        offset=rounded(np.sqrt(np.mean(offsets)), _DIGITS),
        expected=rounded(expected_error(origins.shape[1], known), _DIGITS),
    )


def _update(one: OpenedSum, site: str) -> Reals:
    return one.updates[site].astype(np.float64)
