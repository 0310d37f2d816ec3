"""Ranking of sites before training: the transfer loss, and the numbers of its round (docs/protocol.md 8).

The adapted Ndoye factor: how well a site's own model does on the requester's data, before any training together.

Paper:  Grimberg, "Weight Erosion" semester report, 2020, 4.3. Every site trains alone; its transfer loss is the loss of
        its model on the requester's data; sites are ranked by it.
Here, for linear models with squared loss, without anybody showing data or model (docs/protocol.md 8):
        ||X W - Y||^2 / n = <X'X / n, W W'> - 2 <X'Y / n, W> + ||Y||^2 / n,
        an inner product of a vector that the requester knows with one that the site knows, plus a number that the
        requester knows. Only the losses are opened, to the requester.
Needs:  inner products. X'X is symmetric, so only its upper triangle is multiplied, off the diagonal twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.errors import UnusableUpdate
from protocol.parameters import MAX_SKETCH_LENGTH, MIN_SKETCH_LENGTH, StudyParameters

LONGEST: Final = MAX_SKETCH_LENGTH
"""The longest vector whose sketch can be the vector itself, so that its inner products are exact."""
GRID: Final = 1
"""Nobody is weighted: all vectors have weight 1."""


def vector_length(features: int, outputs: int) -> int:
    """Coordinates of a site's predictor and of the requester's form for p features and K outputs."""
    return features * (features + 1) // 2 + features * outputs


def ranking_parameters(
    length: int, clip_norm: float, *, least_contributors: int = 1, assumed_colluders: int = 0
) -> StudyParameters:
    """Numbers under which the sketch is the identity, so that losses are exact but for rounding.

    Requires: length at most :data:`LONGEST`, clip_norm a power of two
    """
    return StudyParameters(
        dimension=length,
        clip_norm=clip_norm,
        weight_grid=GRID,
        sketch_length=max(MIN_SKETCH_LENGTH, 1 << (length - 1).bit_length()),
        least_contributors=least_contributors,
        assumed_colluders=assumed_colluders,
    )


def query_scale(form_length: float, clip_norm: float) -> float:
    """Return the factor of the requester's form that makes the query as long as a vector may be."""
    return clip_norm / form_length if form_length > 0 else 1.0


def error_bound(parameters: StudyParameters, form_length: float) -> float:
    """Bound the difference between an opened loss and the plain one.

    Both vectors have length at most C in their own scale; rounding moves each of L coordinates by less than one ring
    unit 2^-f, so each vector by less than e = sqrt(L) 2^-f: |<q', z'> - <q, z>| <= e (C + C + e). Back in the loss's
    scale that is times form_length / C.
    """
    e = math.sqrt(parameters.dimension) / parameters.scale
    return e * (2 * parameters.clip_norm + e) * form_length / parameters.clip_norm


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
