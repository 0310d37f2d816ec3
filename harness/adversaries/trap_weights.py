"""A requester's model that reads records: a first layer whose rows fire for one record each (Boenisch et al. 2023).

For a row that only one record activates, among all sites of a sum, the sum's gradient by the row is a multiple of that
record, and the gradient by the row's bias is that multiple: their quotient is the record, however many sites were
summed and whatever they weigh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RARE: Final = 2.5
"""A row fires for inputs this many standard deviations along its direction: about 1 in 160."""
_LEAST_BIAS: Final = 64
"""Below this many errors of the encoding a bias's gradient is none."""


@dataclass(frozen=True, eq=False)
class Trap:
    """The first two dense layers of an MLP with ReLU, as parts of its flat vector: what the attack needs to know."""

    inputs: int
    rows: int
    classes: int

    @property
    def weights(self) -> slice:
        return slice(0, self.inputs * self.rows)

    @property
    def biases(self) -> slice:
        return slice(self.weights.stop, self.weights.stop + self.rows)

    @property
    def outputs(self) -> slice:
        return slice(self.biases.stop, self.biases.stop + self.rows * self.classes)

    @property
    def dimension(self) -> int:
        return (self.inputs + 1) * self.rows + (self.rows + 1) * self.classes

    def planted(self, centre: Floats, spread: Floats, seed: int, rare: float = RARE) -> NDArray[np.float32]:
        """A model whose rows look in random directions of standardised inputs, and fire far out only.

        Shapes:   centre and spread float64[inputs], what an attacker guesses of the data -> float32[dimension]
        """
        drawn = np.random.default_rng(seed)
        directions = drawn.normal(size=(self.rows, self.inputs))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        model = np.zeros(self.dimension, dtype=np.float32)
        scaled = directions / spread
        model[self.weights] = scaled.ravel()
        model[self.biases] = -(scaled @ centre) - rare
        outputs = np.zeros((self.classes, self.rows))
        outputs[0] = 0.5
        outputs[1:] = -0.5
        model[self.outputs] = outputs.ravel()
        return model

    def candidates(self, average: NDArray[np.float32], error: float) -> Floats:
        """Return every row's gradient over its bias's, where there is any; ``error`` is the encoding's per coordinate.

        Shapes:   float32[dimension], an opened average -> float64[fired, inputs]
        """
        rows = average[self.weights].astype(np.float64).reshape(self.rows, self.inputs)
        biases = average[self.biases].astype(np.float64)
        fired = np.abs(biases) > _LEAST_BIAS * error
        return rows[fired] / biases[fired, None]


def steered(model: NDArray[np.float32], target: NDArray[np.float32], step: float, rounds: int) -> NDArray[np.float32]:
    """The model after so many rounds in which the requester's own update moves it as far as a step goes.

    The others' updates, which go elsewhere, are left out: this is the most that a requester can do.
    """
    way = target.astype(np.float64) - model
    distance = float(np.linalg.norm(way))
    return (model + way * min(1.0, step * rounds / max(distance, 1e-12))).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Read:
    """Records that a candidate comes near, and how near: the largest error of a feature, in its standard deviations."""

    records: int
    of: int
    errors: tuple[float, ...] = field(repr=False)


def records_read(candidates: Floats, records: Sequence[NDArray[np.float32]], spread: Floats, within: float) -> Read:
    """Count the ``records`` that some candidate equals to ``within`` standard deviations in every feature."""
    everybody = np.concatenate(records).astype(np.float64)
    errors = []
    for record in everybody:
        if len(candidates):
            errors.append(float(np.min(np.max(np.abs(candidates - record) / spread, axis=1))))
    near = tuple(sorted(error for error in errors if error <= within))
    return Read(len(near), len(everybody), near)
