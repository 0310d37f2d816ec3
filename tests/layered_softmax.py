"""iFedAvg of a softmax regression between two affine layers, once more in float64 numpy; and how far off a run may be.

One site, rows x, shared A, c, personal b, w (input) and b2, w2 (target):

    u = x + b    h = u w    s = A h + c    v = s + b2    t = v w2    r = softmax(t) - y

The gradient of the mean loss: q = r w2 to b2 and c, q h^T to A, r v to w2, g = A^T q, g u to w, g w to b. A round is
``steps`` steps of a site's own copy, all rows at once; the shared steps are summed, averaged over the sites and
applied.

How far off: ``error`` carries the distance d of a run's parameters from these through the same formulas by the product
rule, ||xy - x'y'|| <= ||x|| dy + (||y|| + dy) dx, softmax being 1/2-Lipschitz, and adds float32's rounding at every
stage: u = 2^-24 an operation, c(m) = m u / (1 - m u) an inner product of m terms, sqrt(K) c(16) (2 + 2 max|t|) for
log-softmax and exp. A site moves every coordinate that it encodes by less than ``unit``, so their average too. Two runs
of one study are apart by no more than both bounds together.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 3.1 (c is his gamma)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
UNIT = 2.0**-24


class Layers(NamedTuple):
    """A [K, d], c [K], b and w [d], b2 and w2 [K]; or, as distances, a number for each."""

    A: Array
    c: Array
    b: Array
    w: Array
    b2: Array
    w2: Array


EXACT = Layers(*(np.zeros(()),) * 6)
INPUT, TARGET = (2, 3), (4, 5)


@dataclass(frozen=True)
class Rows:
    """A site's training rows: X [m, d], y one-hot [m, K]."""

    X: Array
    y: Array


@dataclass(frozen=True)
class State:
    """After a round: the shared A and c, every site's layers, and how far a run may be from each."""

    sites: tuple[Layers, ...]
    off: tuple[Layers, ...]

    @property
    def shared(self) -> Array:
        """The flat vector of the study, float64[D]."""
        return np.concatenate([self.sites[0].A.ravel(), self.sites[0].c])

    @property
    def shared_off(self) -> float:
        return float(np.hypot(self.off[0].A, self.off[0].c))

    def personal(self, site: int, places: Sequence[int]) -> Array:
        """The flat personal layers of a site, in the model's order."""
        return np.concatenate([self.sites[site][place] for place in places])

    def personal_off(self, site: int, places: Sequence[int]) -> float:
        return float(np.linalg.norm([self.off[site][place] for place in places]))


@dataclass(frozen=True)
class Training:
    """``places`` are the personal layers that train; ``unit`` is 2^-f, or 0 for a plain run."""

    places: tuple[int, ...]
    steps: int
    local_rate: float
    server_rate: float
    unit: float = 0.0


def first(A: Array, c: Array, sites: int) -> State:
    """Every site at the identity."""
    classes, inputs = A.shape
    layers = Layers(A, c, np.zeros(inputs), np.ones(inputs), np.zeros(classes), np.ones(classes))
    return State((layers,) * sites, (EXACT,) * sites)


def after(state: State, sites: Sequence[Rows], training: Training, rounds: int) -> State:
    """The state after so many rounds."""
    for _ in range(rounds):
        state = _round(state, sites, training)
    return state


def longest_update(state: State, sites: Sequence[Rows], training: Training) -> float:
    """The largest norm of a site's update of the next round."""
    updates = [_local(at, off, rows, training)[2] for at, off, rows in zip(state.sites, state.off, sites, strict=True)]
    return max(float(np.hypot(np.linalg.norm(update.A), np.linalg.norm(update.c))) for update in updates)


def _round(state: State, sites: Sequence[Rows], training: Training) -> State:
    done = [_local(at, off, rows, training) for at, off, rows in zip(state.sites, state.off, sites, strict=True)]
    kept, kept_off = [one[0] for one in done], [one[1] for one in done]
    shared, shared_off = [], []
    for place in (0, 1):
        before, off = state.sites[0][place], state.off[0][place]
        average = np.mean([one[2][place] for one in done], axis=0)
        size = np.linalg.norm(average)
        wrong = np.mean([one[3][place] for one in done]) + training.unit * np.sqrt(average.size)
        wrong += UNIT * (size + wrong)
        step = before - training.server_rate * average
        rounding = 2 * UNIT * (np.linalg.norm(step) + off + 2 * training.server_rate * (size + wrong))
        shared.append(step)
        shared_off.append(off + training.server_rate * wrong + rounding)
    sites_after = tuple(own._replace(A=shared[0], c=shared[1]) for own in kept)
    off_after = tuple(own._replace(A=shared_off[0], c=shared_off[1]) for own in kept_off)
    return replace(state, sites=sites_after, off=off_after)


def _local(at: Layers, off: Layers, rows: Rows, training: Training) -> tuple[Layers, Layers, Layers, Layers]:
    """The site's layers after its steps, their distances, the sum of the gradients, and that sum's distances."""
    moved = (0, 1, *training.places)
    total, total_off, size = ([np.zeros_like(one) for one in of] for of in (at, EXACT, EXACT))
    for _ in range(training.steps):
        gradient, wrong = gradients(at, rows), error(at, rows, off)
        for place in moved:
            size[place] += np.linalg.norm(gradient[place]) + wrong[place]
            total[place] = total[place] + gradient[place]
            total_off[place] += wrong[place] + gamma(training.steps) * size[place]
        stepped = [
            one - training.local_rate * g * (p in moved) for p, (one, g) in enumerate(zip(at, gradient, strict=True))
        ]
        off = Layers(
            *(
                d + training.local_rate * e + 2 * UNIT * (np.linalg.norm(one) + d + training.local_rate * e)
                if place in moved
                else d
                for place, (one, d, e) in enumerate(zip(stepped, off, wrong, strict=True))
            )
        )
        at = Layers(*stepped)
    return at, off, Layers(*total), Layers(*total_off)


def gradients(at: Layers, rows: Rows) -> Layers:
    """Gradients of the mean loss."""
    U, H, V, T = _forward(at, rows)
    R = _softmax(T) - rows.y
    Q = R * at.w2
    G = Q @ at.A
    count = len(rows.X)
    return Layers(
        Q.T @ H / count,
        Q.mean(axis=0),
        (G * at.w).mean(axis=0),
        (G * U).mean(axis=0),
        Q.mean(axis=0),
        (R * V).mean(axis=0),
    )


def error(at: Layers, rows: Rows, d: Layers) -> Layers:
    """The error of a float32 gradient at parameters ``d`` away from the exact one here, in L2 norm per layer."""
    (U, H, V, T), classes = _forward(at, rows), len(at.c)
    R = _softmax(T) - rows.y
    Q = R * at.w2
    G = Q @ at.A
    spectral, frobenius = np.linalg.norm(at.A, 2), np.linalg.norm(at.A)
    w, w2 = np.abs(at.w).max(), np.abs(at.w2).max()
    dU = _rounded(U, d.b)
    dH = _rounded(H, _largest(U) * d.w + (w + d.w) * dU)
    dS = spectral * dH + d.A * (_norm(H) + dH) + d.c
    dS = dS + gamma(H.shape[1] + 1) * ((frobenius + d.A) * (_norm(H) + dH) + np.linalg.norm(at.c) + d.c)
    dV = _rounded(V, dS + d.b2)
    dT = _rounded(T, _largest(V) * d.w2 + (w2 + d.w2) * dV)
    dR = dT / 2 + np.sqrt(classes) * gamma(16) * (2 + 2 * (_largest(T) + dT))
    dQ = _rounded(Q, _largest(R) * d.w2 + (w2 + d.w2) * dR)
    dG = (spectral + d.A) * dQ + d.A * _norm(Q) + gamma(classes) * (frobenius + d.A) * (_norm(Q) + dQ)
    products = (
        (_norm(Q) * _norm(H), (_norm(H) + dH) * dQ + _norm(Q) * dH),
        (_norm(Q), dQ),
        (_norm(G * at.w), (w + d.w) * dG + _largest(G) * d.w),
        (_norm(G * U), (_largest(U) + dU) * dG + _largest(G) * dU),
        (_norm(Q), dQ),
        (_norm(R * V), (_largest(V) + dV) * dR + _largest(R) * dV),
    )
    return Layers(
        *(np.asarray(np.mean(wrong) + gamma(len(rows.X) + 4) * np.mean(size + wrong)) for size, wrong in products)
    )


def gamma(terms: int) -> float:
    """c(m)."""
    return terms * UNIT / (1 - terms * UNIT)


def _forward(at: Layers, rows: Rows) -> tuple[Array, Array, Array, Array]:
    U = rows.X + at.b
    H = U * at.w
    V = H @ at.A.T + at.c + at.b2
    return U, H, V, V * at.w2


def _softmax(T: Array) -> Array:
    grown = np.exp(T - T.max(axis=1, keepdims=True))
    return grown / grown.sum(axis=1, keepdims=True)


def _norm(rows: Array) -> Array:
    return np.linalg.norm(rows, axis=1)


def _largest(rows: Array) -> Array:
    return np.abs(rows).max(axis=1)


def _rounded(values: Array, wrong: Array) -> Array:
    return wrong + UNIT * (_norm(values) + wrong)
