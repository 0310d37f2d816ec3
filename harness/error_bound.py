r"""How far apart the models of a secure and a plain run can be, same seeds and same weights (docs/protocol.md 2, 9).

Let theta be the secure model, phi the plain one, delta_r = ||theta_r - phi_r||. Both take
``model - eta * average``, the average being sum_i w_i clip(g_i) / W with W the sum of weights, the requester's 1
included. For softmax regression each g_i is the gradient of a convex function whose Hessian over a batch is at most
L_i = lambda_max(x x^T averaged over the batch, x with the bias's 1 appended) / 2 + l2, so with L = sum_i w_i L_i / W

    delta_{r+1} <= q_r delta_r + eta * e_r + a_r

    q_r   max(1, eta L - 1) when no site's update was clipped: I - eta H with 0 <= H <= L.
          1 + eta L otherwise: clipping is a projection, so it never spreads two updates further apart.
    e_r   n sqrt(D) 2^-f / W: stochastic rounding moves each of n sites' D coordinates by less than 2^-f;
          plus 2 g, where g is what float32 does to one gradient (below); plus 2 u C for rounding the average to
          float32, u = 2^-24, an average's norm being at most C.
    a_r   2 u (eta C + M), rounding in eta * average and in the subtraction; M bounds both models' norms.

    g = X (sqrt(K)/2 c(d+1) M X + sqrt(K) c(8) + sqrt(2) c(b+2)) + 2 u l2 M,  c(m) = m u / (1 - m u)

for K classes, d inputs, batches of b rows with norms at most X: an inner product of m terms is wrong by at most c(m)
times the product of the norms, softmax is 1/2-Lipschitz and takes about 8 roundings, a row's gradient has norm at
most sqrt(2) X. M = ||theta_0|| + R eta C. Encoding and clipping run in float64, whose rounding is 2^-29 of the above.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 3.1 (c is his gamma); Nesterov, 2.1 (I - eta H).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.parameters import StudyParameters

_UNIT = 2.0**-24


@dataclass(frozen=True)
class RoundFacts:
    """One released round. ``smoothness`` is L; ``sum_of_weights`` is W and ``sites`` n, both with the requester."""

    sites: int
    sum_of_weights: float
    smoothness: float
    clipped: bool


@dataclass(frozen=True)
class RegressionFacts:
    """The softmax regression that was trained: sizes, the longest row with the bias's 1, and ||theta_0||."""

    classes: int
    inputs: int
    batch_size: int
    longest_row: float
    l2: float
    initial_norm: float


def smoothness(X: NDArray[np.float32], l2: float) -> float:
    """L of softmax regression over one batch: half the largest eigenvalue of the rows' second moment, plus l2.

    Shapes:   X float32[b, d], without the bias's column
    """
    rows = np.hstack([X.reshape(len(X), -1).astype(np.float64), np.ones((len(X), 1))])
    return float(np.linalg.norm(rows, ord=2) ** 2 / len(rows)) / 2 + l2


def longest_row(X: NDArray[np.float32]) -> float:
    """The largest norm of a row, the bias's 1 appended."""
    flat = X.reshape(len(X), -1).astype(np.float64)
    return float(np.sqrt(1 + np.square(flat).sum(axis=1)).max())


def difference_bound(
    rounds: Sequence[RoundFacts], model: RegressionFacts, parameters: StudyParameters, step: float
) -> float:
    """A bound on ||theta - phi|| after ``rounds``, hence on every coordinate; ``step`` is the server's eta."""
    largest_norm = model.initial_norm + len(rounds) * step * parameters.clip_norm
    gradient = _gradient_error(model, largest_norm)
    apply = 2 * _UNIT * (step * parameters.clip_norm + largest_norm)
    delta = 0.0
    for facts in rounds:
        growth = 1 + step * facts.smoothness if facts.clipped else max(1.0, step * facts.smoothness - 1)
        encoding = facts.sites * math.sqrt(parameters.dimension) / parameters.scale / facts.sum_of_weights
        delta = growth * delta + step * (encoding + 2 * gradient + 2 * _UNIT * parameters.clip_norm) + apply
    return delta


def _gradient_error(model: RegressionFacts, largest_norm: float) -> float:
    """g: how far a gradient computed in float32 can be from the exact one."""
    x, root = model.longest_row, math.sqrt(model.classes)
    softmax = root / 2 * _gamma(model.inputs + 1) * largest_norm * x + root * _gamma(8)
    return x * (softmax + math.sqrt(2) * _gamma(model.batch_size + 2)) + 2 * _UNIT * model.l2 * largest_norm


def _gamma(terms: int) -> float:
    return terms * _UNIT / (1 - terms * _UNIT)
