"""The list of least risk among those that every site's policy accepts (docs/protocol.md 9, 10).

Solver: strictly convex quadratic programmes whose constraints an oracle names one by one, exactly by an active set.

Source: Goldfarb, Idnani, "A numerically stable dual method for solving strictly convex quadratic programs", Math.
        Programming 27, 1983. The oracle makes room for constraints that are too many to write down.

Mallows' criterion: what a weighting of the sites' updates costs, in units of the requester's noise v_0.

Source: Hansen, "Least Squares Model Averaging", Econometrica 2007. The step is g_0 + sum_i w_i (g_i - g_0); with
        K_ij = <g_i - g_0, g_j - g_0> / v_0, the mean over measured rounds, and r_i = v_i / v_0,

    raw       w'Kw - 2 c sum(w)                            c = 1: the squared error without bias, less v_0
    plug-in   b w'B+ w + (1 - sum(w))^2 + sum_i r_i w_i^2  B+ the positive semidefinite part of K - 11' - diag(r)

        The raw form gives all weight to a site that replays an estimate of g_0; in the other a site's weight is
        limited by its declared number of samples. Neither is a defence against sites that lie.

With k others sure to be in the sum and s the largest share, a list passes if for its heaviest site, of weight u,
(1 - s) u <= s times the k lightest weights: one linear constraint for every choice of the heaviest and the k lightest,
of which the solver is shown the one that is broken most. Who is not listed has no weight and does not count, so which
sites to leave out is combinatorial: the lightest goes, and the rest is solved again while the constraint binds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ProtocolViolation
from protocol.rules.interface import ListTerms

Reals = NDArray[np.float64]
_FLAT: Final = 1e-12
_MOST_STEPS: Final = 100_000


@dataclass(frozen=True, eq=False)
class Cut:
    """<normal, x> >= bound."""

    normal: Reals = field(repr=False)
    bound: float = 0.0

    def lacks(self, x: Reals) -> float:
        """Return by how much x falls short; not positive where it does not."""
        return self.bound - float(self.normal @ x)


MostViolated = Callable[[Reals], Cut | None]
"""The cut that x violates most; None when x is feasible."""


@dataclass(eq=False)
class _Active:
    """The cuts that hold with equality, and their multipliers."""

    inverse: Reals
    normals: list[Reals] = field(default_factory=list)
    multipliers: list[float] = field(default_factory=list)

    def directions(self, cut: Cut) -> tuple[Reals, Reals]:
        """Return x's direction, and the multipliers' decrease, per unit of the new cut's multiplier."""
        towards = self.inverse @ cut.normal
        if not self.normals:
            return towards, np.zeros(0)
        N = np.stack(self.normals, axis=1)
        moved = self.inverse @ N
        falls = np.asarray(np.linalg.lstsq(N.T @ moved, N.T @ towards, rcond=None)[0], dtype=np.float64)
        return towards - moved @ falls, falls

    def drop(self, place: int) -> None:
        del self.normals[place], self.multipliers[place]


def minimiser(G: Reals, a: Reals, violated: MostViolated) -> Reals:
    """The x that minimises x'Gx / 2 + a'x over all cuts.

    Shapes:   G float64[n, n] positive definite, a float64[n] -> float64[n]
    Raises:   ProtocolViolation when the cuts have no point in common
    """
    inverse = np.linalg.inv(G)
    x, active = -inverse @ a, _Active((inverse + inverse.T) / 2)
    for _ in range(_MOST_STEPS):
        cut = violated(x)
        if cut is None:
            return x
        x = _satisfied(x, cut, active)
    raise ProtocolViolation(f"no optimal weights after {_MOST_STEPS} steps; what was measured is not usable")


def _satisfied(x: Reals, cut: Cut, active: _Active) -> Reals:
    """Make one more cut active; cuts whose multiplier falls to 0 on the way leave."""
    multiplier, scale = 0.0, float(cut.normal @ active.inverse @ cut.normal)
    for _ in range(_MOST_STEPS):
        move, falls = active.directions(cut)
        slope = float(cut.normal @ move)
        full = cut.lacks(x) / slope if slope > _FLAT * scale else np.inf
        held = [(active.multipliers[i] / fall, i) for i, fall in enumerate(falls) if fall > 0]
        partial, place = min(held, default=(np.inf, -1))
        step = min(full, partial)
        if not np.isfinite(step):
            break
        active.multipliers = [u - step * fall for u, fall in zip(active.multipliers, falls, strict=True)]
        multiplier += step
        if np.isfinite(full):
            x = x + step * move
        if full <= partial:
            active.normals.append(cut.normal)
            active.multipliers.append(multiplier)
            return x
        active.drop(place)
    raise ProtocolViolation("the weights' constraints contradict each other; check the policy and least_contributors")


Places = NDArray[np.intp]

_RIDGE: Final = 1e-7
"""A part of the largest entry, which makes the raw form strictly convex."""


@dataclass(frozen=True, eq=False)
class Risk:
    """x'Gx / 2 + a'x for the weights x of some sites."""

    G: Reals = field(repr=False)
    a: Reals = field(repr=False)

    def of(self, weights: Reals) -> float:
        """Return the cost of these weights, up to a constant."""
        return float(weights @ self.G @ weights / 2 + self.a @ weights)

    def among(self, sites: Places) -> Risk:
        """With weight 0 for all but the sites at these places."""
        return Risk(self.G[np.ix_(sites, sites)], self.a[sites])


def raw_risk(K: Reals, variance_factor: float) -> Risk:
    """Shapes: K float64[n, n]; ``variance_factor`` is c."""
    return Risk(_strict(2 * positive_part(K)), np.full(len(K), -2 * variance_factor))


def plug_in_risk(K: Reals, noise: Reals, bias_factor: float) -> Risk:
    """Shapes: K float64[n, n], ``noise`` r float64[n]; ``bias_factor`` is b."""
    ones = np.ones_like(K)
    bias = positive_part(K - ones - np.diag(noise))
    return Risk(_strict(2 * (bias_factor * bias + ones + np.diag(noise))), np.full(len(K), -2.0))


def positive_part(matrix: Reals) -> Reals:
    """The nearest positive semidefinite matrix in the Frobenius norm."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0)) @ vectors.T, dtype=np.float64)


def _strict(G: Reals) -> Reals:
    return G + _RIDGE * max(float(np.abs(G).max(initial=0)), _RIDGE) * np.eye(len(G))


_TOLERANCE: Final = 1e-8


@dataclass(frozen=True, eq=False)
class Choice:
    """Numerators over the grid: the requester's, and one per site, 0 for one that is not listed."""

    own: int
    numerators: NDArray[np.int64] = field(repr=False)

    def weights(self) -> Reals:
        """The contributors' shares of the sum."""
        return np.asarray(self.numerators / (self.own + self.numerators.sum()), dtype=np.float64)


def best_choice(risk: Risk, terms: ListTerms, grid: int) -> Choice:
    """The best list over the grid, the heaviest weight being 1; at least ``terms.least`` sites have one grid step."""
    sites = np.arange(len(risk.a))
    found: list[Choice] = []
    while True:
        weights = np.zeros(len(risk.a))
        weights[sites] = solved(risk.among(sites), terms)
        found.append(rounded(weights, sites, terms, grid))
        if len(sites) <= terms.least or _share_lacks(weights[sites], terms) < -_TOLERANCE:
            return min(found, key=lambda choice: risk.of(choice.weights()))
        lightest = int(np.argmin(weights[sites]))
        sites = np.delete(sites, lightest)


def solved(risk: Risk, terms: ListTerms) -> Reals:
    """The real weights of least risk with all of these sites listed: float64[n], at least 0, together at most 1."""
    n = len(risk.a)
    everybody = Cut(-np.ones(n), -1.0)

    def most_violated(w: Reals) -> Cut | None:
        negative = Cut(np.eye(n)[int(np.argmin(w))])
        cuts = (negative, everybody, _share_cut(w, terms))
        worst = max((cut for cut in cuts if cut is not None), key=lambda cut: cut.lacks(w))
        return worst if worst.lacks(w) > _TOLERANCE else None

    return np.maximum(minimiser(risk.G, risk.a, most_violated), 0)


def rounded(weights: Reals, sites: Places, terms: ListTerms, grid: int) -> Choice:
    """To the grid; the heaviest sites give way until the list passes in whole numbers.

    Of ``sites`` at least ``terms.least`` stay listed, the heaviest first.
    """
    own = max(0.0, 1 - float(weights.sum()))
    scale = grid / max(own, float(weights.max(initial=0)))
    numerators = np.rint(scale * weights).astype(np.int64)
    due = sites[np.argsort(-weights[sites], kind="stable")][: terms.least]
    numerators[due] = np.maximum(numerators[due], 1)
    share = terms.largest_share
    while share < 1:
        listed = np.flatnonzero(numerators)
        heaviest = listed[int(np.argmax(numerators[listed]))]
        others = np.sort(numerators[listed[listed != heaviest]])[: terms.sure(len(listed))]
        most = int(share * int(others.sum()) / (1 - share))
        if numerators[heaviest] <= max(most, 1):
            break
        numerators[heaviest] = max(most, 1)
    return Choice(int(np.rint(scale * own)), numerators)


def _share_cut(w: Reals, terms: ListTerms) -> Cut | None:
    """Return the cut for the heaviest and the lightest others; None where any share is allowed."""
    share = float(terms.largest_share)
    if share >= 1:
        return None
    heaviest = int(np.argmax(w))
    others = np.delete(np.arange(len(w)), heaviest)
    lightest = others[np.argsort(w[others], kind="stable")][: terms.sure(len(w))]
    normal = np.zeros(len(w))
    normal[lightest] = share
    normal[heaviest] = share - 1
    return Cut(normal)


def _share_lacks(w: Reals, terms: ListTerms) -> float:
    """0 where the policies' constraint binds, below where it does not."""
    cut = _share_cut(w, terms)
    return -np.inf if cut is None else cut.lacks(w)
