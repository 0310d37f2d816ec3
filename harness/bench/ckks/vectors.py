"""The benchmark's weighted vectors for CKKS, their exact average, and how far an opened one is from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.bench.vectors import CLIP_NORM, Vector, numerator_of, parameters_for, update_of
from protocol.arithmetic.fixed_point import scaling_of
from protocol.arithmetic.kernels import Scaling


@dataclass(frozen=True)
class WeightedUpdate:
    """What one site encrypts."""

    update: Vector
    scaling: Scaling


def weighted_update(place: int, dimension: int, sites: int) -> WeightedUpdate:
    """The update of the site at a place of the roster, with the weight that the other benchmarks give it."""
    parameters = parameters_for(dimension, sites)
    update = update_of(place, dimension)
    weight = numerator_of(place, parameters.weight_grid) / parameters.weight_grid
    return WeightedUpdate(update, scaling_of(update, (("all", dimension),), parameters, weight))


@dataclass(frozen=True)
class Errors:
    """In units of the clip norm."""

    largest: float
    norm: float


def errors_of(opened: NDArray[np.float32], sites: int) -> Errors:
    """The opened average of ``sites`` updates against float64's."""
    total, weights = np.zeros(opened.size), 0.0
    for place in range(sites):
        one = weighted_update(place, opened.size, sites)
        scaling = one.scaling
        total += one.update.astype(np.float64) * scaling.unit * scaling.factor * scaling.weight
        weights += scaling.weight
    off = (total / weights - opened) / CLIP_NORM
    return Errors(float(np.max(np.abs(off))), float(np.linalg.norm(off)))
