"""Adapted Ndoye factor: how well a site's own model does on the requester's data, before any training together.

Paper:  Grimberg, "Weight Erosion" semester report, 2020, 4.3. Every site trains alone; its transfer loss is the loss of
        its model on the requester's data; sites are ranked by it.
Here, for linear models with squared loss, without anybody showing data or model (docs/protocol.md 8):
        ||X W - Y||^2 / n = <X'X / n, W W'> - 2 <X'Y / n, W> + ||Y||^2 / n,
        an inner product of a vector that the requester knows with one that the site knows, plus a number that the
        requester knows. Only the losses are opened, to the requester.
Needs:  inner products. X'X is symmetric, so only its upper triangle is multiplied, off the diagonal twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import UnusableUpdate

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class QuadraticForm:
    """The requester's data as a function of a linear model: loss = <vector, predictor(W)> + constant."""

    vector: Matrix
    constant: float

    @property
    def length(self) -> float:
        """L2 norm of the vector."""
        return float(np.linalg.norm(self.vector))

    def loss(self, predictor_vector: Matrix) -> float:
        """Mean squared loss, in plain."""
        return float(self.vector @ predictor_vector) + self.constant


@dataclass(frozen=True)
class TransferLoss:
    """One site's transfer loss; the smaller, the more its data resemble the requester's."""

    site: str
    loss: float


def quadratic_form(X: Matrix, Y: Matrix) -> QuadraticForm:
    """The requester's side.

    Shapes:   X float64[n, p], Y float64[n, K] -> vector float64[p (p + 1) / 2 + p K]
    Raises:   UnusableUpdate for no example, other shapes, NaN, infinity or products that overflow
    """
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y) or len(X) == 0:
        raise UnusableUpdate(f"examples and targets are two tables with one row each, found {X.shape} and {Y.shape}")
    if not (np.isfinite(X).all() and np.isfinite(Y).all()):
        raise UnusableUpdate("the requester's examples hold NaN or infinity; fill in or drop missing values first")
    rows, columns = np.triu_indices(X.shape[1])
    twice = np.where(rows == columns, 1.0, 2.0)
    with np.errstate(over="ignore", invalid="ignore"):
        gram = (X.T @ X)[rows, columns] * twice
        vector = np.concatenate((gram, -2 * (X.T @ Y).ravel())) / len(X)
        form = QuadraticForm(vector, float(np.sum(Y * Y)) / len(X))
        finite = np.isfinite(form.length) and np.isfinite(form.constant)
    if not finite:
        raise UnusableUpdate("the requester's examples are so large that their products overflow: scale the features")
    return form


def predictor(W: Matrix) -> Matrix:
    """The site's side: the upper triangle of W W', then W.

    Shapes:   W float64[p, K] -> float64[p (p + 1) / 2 + p K]
    Raises:   UnusableUpdate for another shape, NaN or infinity
    """
    if W.ndim != 2 or not np.isfinite(W).all():
        raise UnusableUpdate(f"a linear model is a finite table of features by outputs, found shape {W.shape}")
    rows, columns = np.triu_indices(W.shape[0])
    return np.concatenate(((W @ W.T)[rows, columns], W.ravel()))


def ranked(losses: tuple[TransferLoss, ...]) -> tuple[TransferLoss, ...]:
    """Smallest loss first; ties by name."""
    return tuple(sorted(losses, key=lambda one: (one.loss, one.site)))
