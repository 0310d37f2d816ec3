"""The synthetic updates of a benchmark: any process can make any site's again, and numpy can average them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.parameters import StudyParameters

CLIP_NORM: Final = 1.0
_GRIDS: Final = (32, 16, 8, 4, 2, 1)
_LONGER_THAN_CLIP: Final = 1.1

Vector = NDArray[np.float32]


def parameters_for(dimension: int, sites: int) -> StudyParameters:
    """The finest weight grid, of at most 32, that keeps rounding noise small at this dimension (docs/protocol.md 2)."""
    encoded_norm = StudyParameters(dimension=1, clip_norm=CLIP_NORM, least_contributors=1).encoded_norm
    grid = next((g for g in _GRIDS if 16 * math.sqrt(dimension) * g <= encoded_norm), 1)
    return StudyParameters(
        dimension=dimension, clip_norm=CLIP_NORM, weight_grid=grid, least_contributors=max(1, sites - 1)
    )


def update_of(place: int, dimension: int) -> Vector:
    """The update of the site at a place of the roster: uniform, a tenth longer than the clip norm.

    Shapes:   -> float32[D]
    """
    out = np.empty(dimension, dtype=np.float32)
    np.random.default_rng([place, dimension]).random(out=out, dtype=np.float32)
    out -= np.float32(0.5)
    out *= np.float32(_LONGER_THAN_CLIP * CLIP_NORM / math.sqrt(dimension / 12))
    return out


def numerator_of(place: int, grid: int) -> int:
    """Weights differ from site to site, between three quarters and all of the grid; the requester's is the grid."""
    return grid if place == 0 else max(1, grid - place % max(1, grid // 4 + 1))


@dataclass(frozen=True)
class PlainAverage:
    """numpy's weighted average of the clipped vectors, and the CPU time of the additions alone."""

    average: Vector = field(repr=False)
    cpu_ns: int


def plain_average(places: list[int], parameters: StudyParameters) -> PlainAverage:
    """FedAvg over the same vectors; making and clipping them is not counted."""
    total = np.zeros(parameters.dimension, dtype=np.float32)
    weights, cpu_ns = 0.0, 0
    for place in places:
        vector = update_of(place, parameters.dimension)
        norm = math.sqrt(float(np.dot(vector, vector)))
        weight = numerator_of(place, parameters.weight_grid) / parameters.weight_grid
        factor = np.float32(weight * min(1.0, parameters.clip_norm / norm))
        begun = time.process_time_ns()
        np.multiply(vector, factor, out=vector)
        np.add(total, vector, out=total)
        cpu_ns += time.process_time_ns() - begun
        weights += weight
    begun = time.process_time_ns()
    np.divide(total, np.float32(weights), out=total)
    return PlainAverage(total, cpu_ns + time.process_time_ns() - begun)


def largest_allowed_difference(places: list[int], parameters: StudyParameters) -> float:
    """Between the opened average and numpy's.

    Each site's rounding moves a coordinate by less than 2^-f; the sum is divided by the weights. numpy's float32
    sum of n terms of at most c each is off by at most n * 2^-24 * n * c, and its dot product, a pairwise sum of D
    squares, scales everything by an error far below 2^-12: together 2^-11 of the largest coordinate are allowed.
    """
    weights = sum(numerator_of(p, parameters.weight_grid) for p in places) / parameters.weight_grid
    largest = 0.5 * _LONGER_THAN_CLIP * CLIP_NORM / math.sqrt(parameters.dimension / 12)
    return len(places) / parameters.scale / weights + largest * 2.0**-11
