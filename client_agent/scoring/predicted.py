"""A model's outputs beside what they should have been, as the metrics take them."""

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
