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
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

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
