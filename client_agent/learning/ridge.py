"""The linear models that sites are ranked by: ridge regression on one-hot classes, in closed form (docs/protocol.md 8).

They need flat features and nothing of the study's model: any study can rank its sites by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.data import Examples
from protocol.errors import UnusableUpdate
from protocol.ranking import QuadraticForm, quadratic_form

Matrix = NDArray[np.float64]
_SCALE: Final = "bring the features to a common scale, or leave columns out"


class JudgedOn(StrEnum):
    """The requester's examples on which the others' models are judged; never its test set."""

    VALIDATION = "validation"
    TRAINING = "training"

    @property
    def caveat(self) -> str:
        """The remark beside the requester's own loss on them, which then is smaller than on examples not seen."""
        return ", trained on the same examples" if self is JudgedOn.TRAINING else ""


@dataclass(frozen=True, eq=False)
class JudgingForm:
    """The requester's examples as a function of a linear model."""

    examples: Examples
    form: QuadraticForm
    judged_on: JudgedOn


def design(examples: Examples) -> Matrix:
    """One row an example: its features, flattened, and a constant 1."""
    flat = examples.X.reshape(len(examples), -1).astype(np.float64)
    return np.hstack((flat, np.ones((len(examples), 1))))


def targets(examples: Examples, classes: int) -> Matrix:
    """One-hot classes."""
    return np.eye(classes)[examples.y]


def ridge(X: Matrix, Y: Matrix, penalty: float) -> Matrix:
    """argmin ||X W - Y||^2 / n + penalty ||W||^2.

    Shapes:   X float64[n, p], Y float64[n, K] -> float64[p, K]
    Raises:   UnusableUpdate where rounding hides the penalty, or numbers overflow
    """
    n, features = X.shape
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            solved: Matrix = np.linalg.solve(X.T @ X / n + penalty * np.eye(features), X.T @ Y / n)
    except np.linalg.LinAlgError:
        raise UnusableUpdate(
            f"no ridge regression: rounding hides the penalty, as with equal columns of large numbers; {_SCALE}"
        ) from None
    if not np.isfinite(solved).all():
        raise UnusableUpdate(f"no ridge regression: the features hold NaN or numbers that overflow; {_SCALE}")
    return solved


def ridge_model(examples: Examples, classes: int, penalty: float) -> Matrix:
    """A site's own model. Shapes: -> float64[features + 1, classes]. Raises: UnusableUpdate"""
    return ridge(design(examples), targets(examples, classes), penalty)


def judging_form(train: Examples, validation: Examples | None, classes: int) -> JudgingForm:
    """Validation examples where the requester keeps some apart, else those it trains on. Raises: UnusableUpdate"""
    if validation is not None and len(validation):
        judged, name = validation, JudgedOn.VALIDATION
    else:
        judged, name = train, JudgedOn.TRAINING
    return JudgingForm(judged, quadratic_form(design(judged), targets(judged, classes)), name)
