"""A model's outputs beside the targets, and the scores of them that a simulation computes after every round.

Accuracy, log-loss and the area under the ROC curve in numpy, the bits that scikit-learn gives. A simulation wants them
after every round and a bootstrap for every draw. On the few hundred examples of a test part scikit-learn spends 3 ms in
looking at its arguments, which are known here: far more than a round of a small model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from protocol.messages.control import TaskKind, TaskSpec

Array = NDArray[np.float64]


class NotComputable(Exception):
    """A metric means nothing on these examples; the text says why, for people."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """Outputs [n, K] for examples with targets y, as the task has both; n is at least 1.

    ``train`` are those of the site's training part, of which a survival task estimates its baseline hazard.
    """

    task: TaskSpec
    outputs: NDArray[np.float32] = field(repr=False)
    y: NDArray[Any] = field(repr=False)
    train: Predicted | None = field(default=None, repr=False)

    def rows(self, rows: NDArray[np.int64]) -> Predicted:
        """Some of the examples, a row as often as it is named."""
        return Predicted(self.task, self.outputs[rows], self.y[rows], self.train)

    @cached_property
    def values(self) -> Array:
        """The predictions: probabilities, numbers, rates, all [n, K], or log hazards [n, 1]."""
        outputs = self.outputs.astype(np.float64)
        match self.task.kind:
            case TaskKind.CLASSES:
                return np.asarray(softmax(outputs, axis=1))
            case TaskKind.MULTI_LABEL:
                return np.asarray(expit(outputs))
            case TaskKind.COUNTS:
                with np.errstate(over="ignore"):
                    return np.exp(outputs)
            case _:
                return outputs

    def require_usable(self) -> None:
        """Raises: NotComputable for a model that diverged"""
        if not np.isfinite(self.values).all():
            raise NotComputable("the model's outputs are not finite")


Labels = NDArray[np.int64]


def share_right(y: Labels, chosen: Labels) -> float:
    """The share of examples whose chosen class, int64[n], is the true one."""
    return float(np.mean(y == chosen))


def mean_log_loss(y: Labels, probabilities: Array) -> float:
    """The mean of -ln p over the examples, p the probability of the true class, no nearer to 0 and 1 than rounding.

    Shapes:  int64[n], float64[n, K]
    Raises:  NotComputable for a class that the model does not know
    """
    if y.min() < 0 or y.max() >= probabilities.shape[1]:
        raise NotComputable(f"the test part has classes beyond the model's {probabilities.shape[1]}")
    least = np.finfo(np.float64).eps
    of_truth = np.clip(probabilities[np.arange(len(y)), y], least, 1 - least)
    return float(np.mean(-np.log(of_truth)))


def area_under_roc(y: Labels, probabilities: Array) -> float:
    """Return the area under the ROC curve: the second class's of two, of more the mean of each against the rest.

    Shapes:   int64[n], float64[n, K]
    Requires: an example of every class
    """
    if probabilities.shape[1] == 2:
        return _area(y == 1, probabilities[:, 1])
    return float(np.mean([_area(y == one, column) for one, column in enumerate(probabilities.T)]))


def _area(positive: NDArray[np.bool_], score: Array) -> float:
    """Integrate by trapezoids between the thresholds at which the curve turns."""
    order = np.argsort(-score, kind="stable")
    last_of_tie = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    hits = np.cumsum(positive[order], dtype=np.float64)[last_of_tie]
    misses = 1.0 + last_of_tie - hits
    turns = np.ones(len(hits), dtype=bool)
    turns[1:-1] = (np.diff(misses, 2) != 0) | (np.diff(hits, 2) != 0)
    x, y = (np.append(0.0, counts[turns]) / counts[-1] for counts in (misses, hits))
    return float(np.trapezoid(y, x))
