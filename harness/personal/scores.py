"""How well every site is served: accuracy and weighted F1 of the model that each site uses."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from sklearn.metrics import accuracy_score, f1_score


class Scores(BaseModel):
    """One number per site, in the federation's order; F1 is averaged over classes by their number of examples."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    accuracy: tuple[float, ...]
    f1: tuple[float, ...]

    @property
    def mean_f1(self) -> float:
        return mean(self.f1)

    @property
    def worst_f1(self) -> float:
        return min(self.f1)

    @property
    def mean_accuracy(self) -> float:
        return mean(self.accuracy)


def scores_of(labels: Sequence[NDArray[np.int64]], predictions: Sequence[NDArray[np.int64]]) -> Scores:
    """Of every site's true and predicted classes; no site's may be empty."""
    pairs = list(zip(labels, predictions, strict=True))
    return Scores(
        accuracy=tuple(float(accuracy_score(true, found)) for true, found in pairs),
        f1=tuple(float(f1_score(true, found, average="weighted", zero_division=0.0)) for true, found in pairs),
    )
