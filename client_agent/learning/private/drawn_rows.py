"""Draw the records of a step: each by itself with the same probability, from secret bytes (docs/protocol.md 19)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic.ring import Usage, expand
from protocol.messages.control import TrainingSpec

_WORD: Final = 2**64


def drawn_rows(examples: int, batch_size: int, seed: bytes) -> NDArray[np.int64]:
    """Rows drawn with probability at most batch_size / examples each, exactly and independently; all where it is 1.

    Shapes: -> int64[about batch_size]; empty at times
    """
    if batch_size >= examples:
        return np.arange(examples)
    threshold = np.uint64(batch_size * _WORD // examples)
    return np.flatnonzero(expand(seed, Usage.NOISE, examples) < threshold)


def drawing_probability(examples: int, batch_size: int) -> float:
    """With which a record is in a step."""
    return min(1.0, batch_size / examples)


def steps_of(examples: int, training: TrainingSpec) -> int:
    """Steps of one round: as many as its passes over the records take, or the one gradient."""
    if training.update == "gradient":
        return 1
    return training.epochs * -(-examples // training.batch_size)
