"""Mallows' criterion: what a weighting of the sites' updates costs, in units of the requester's noise v_0.

Source: Hansen, "Least Squares Model Averaging", Econometrica 2007. The step is g_0 + sum_i w_i (g_i - g_0); with
        K_ij = <g_i - g_0, g_j - g_0> / v_0, the mean over measured rounds, and r_i = v_i / v_0,

    raw       w'Kw - 2 c sum(w)                            c = 1: the squared error without bias, less v_0
    plug-in   b w'B+ w + (1 - sum(w))^2 + sum_i r_i w_i^2  B+ the positive semidefinite part of K - 11' - diag(r)

        The raw form gives all weight to a site that replays an estimate of g_0; in the other a site's weight is
        limited by its declared number of samples. Neither is a defence against sites that lie.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.rules.risk.quadratic import Reals

Places = NDArray[np.intp]

_RIDGE: Final = 1e-7
"""Of the largest entry: makes the raw form strictly convex."""


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
