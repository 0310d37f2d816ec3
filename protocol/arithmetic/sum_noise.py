"""Noise that each of two servers adds to its half of a sum, in whole ring units (docs/protocol.md 21).

A site that is replaced by one that shares zeros moves the sum of encoded updates by at most the sensitivity: E for the
clipped and weighted update, less than one ring unit per coordinate for its rounding, one for the clipping in floating
point. A server's draws have ``noise_multiplier`` times that as their deviation, so one server's part alone is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from protocol.arithmetic.discrete_gaussian import LARGEST_SIGMA
from protocol.parameters import StudyParameters

TAIL_LOG2: Final = 40
"""Two servers' honest noise leaves each of its bounds with a probability of at most 2^-40 per round."""
SQUARED_BELOW: Final = 1 << 32
"""Coordinates of an opened sum are squared in 64 bits."""


@dataclass(frozen=True)
class SumNoise:
    """The noise that each server adds to every coordinate: a draw of N_Z(0, ``deviation``^2), ``deviation`` in ring
    units.

    ``sensitivity`` is the largest length of one site's encoded update, ``dimension`` the number of coordinates.
    """

    sensitivity: int
    deviation: int
    dimension: int

    @classmethod
    def of(cls, parameters: StudyParameters, noise_multiplier: float) -> SumNoise:
        """That of a study. Raises: ValueError, where it cannot be drawn in whole numbers of 64 bits"""
        sensitivity = parameters.encoded_norm + math.isqrt(parameters.dimension - 1) + 2
        deviation = math.ceil(Fraction(repr(noise_multiplier)) * sensitivity)
        if deviation > LARGEST_SIGMA:
            raise ValueError(
                f"privacy: noise of {noise_multiplier:g} times the longest update deviates by {deviation} ring units, "
                f"at most {LARGEST_SIGMA} can be drawn exactly: take a smaller noise_multiplier or encoded_norm_log2"
            )
        return cls(sensitivity, deviation, parameters.dimension)

    @property
    def most_coordinate(self) -> int:
        """The largest coordinate of both servers' noise, in ring units, except in one round in 2^40.

        Each draw is subgaussian with its deviation, their sum with sqrt(2) times that.
        Source: Canonne, Kamath, Steinke 2020, corollary 17 (tails); a union over the coordinates
        """
        return math.ceil(2 * self.deviation * math.sqrt(math.log(2 * self.dimension) + TAIL_LOG2 * math.log(2)))

    @property
    def most_length(self) -> float:
        """The greatest length of both servers' noise, in ring units, except in one round in 2^40.

        Source: Hsu, Kakade, Zhang 2012, theorem 2.1, for the identity: |x|^2 <= v (sqrt(D) + sqrt(2 t))^2, else exp(-t)
        """
        tail = math.sqrt(2 * TAIL_LOG2 * math.log(2))
        return math.sqrt(2) * self.deviation * (math.sqrt(self.dimension) + tail)

    def widened(self, bound: int, longest: float) -> tuple[int, float]:
        """Widen the bounds of an honest sum, coordinate and length, by both servers' noise.

        No coordinate is larger than a sum is long.
        """
        return min(bound, math.ceil(longest)) + self.most_coordinate, longest + self.most_length

    @property
    def square(self) -> float:
        """The expected squared length of one server's noise over that of the longest update."""
        return self.dimension * (self.deviation / self.sensitivity) ** 2

    def require_room(self, sites: int) -> None:
        """A sum over so many sites fits, with both servers' noise, into what a site opens. Raises: ValueError"""
        largest = sites * self.sensitivity + self.most_coordinate
        if largest >= SQUARED_BELOW:
            raise ValueError(
                f"privacy: the sum of {sites} sites with noise reaches {largest} ring units, at most {SQUARED_BELOW} "
                "can be opened: take a smaller noise_multiplier or encoded_norm_log2"
            )
