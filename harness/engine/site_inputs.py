"""What a site puts into a secure round, as ring elements (docs/protocol.md 2, 9)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.arithmetic import fixed_point
from protocol.arithmetic.ring import Ring
from protocol.parameters import StudyParameters
from protocol.rules.self_weights import counts_vector


class Given(Protocol):
    """Whatever a site shares in a round."""

    @property
    def site(self) -> str: ...

    def encoded(self, parameters: StudyParameters, rounding_seed: bytes) -> Ring:
        """uint64[D]. Raises: UnusableUpdate"""
        ...


@dataclass(frozen=True, eq=False)
class SiteInput:
    """A site's clipped vector before the list's weight, and that weight's numerator (the grid for the requester).

    Where sites weigh themselves, the vector is (w g, w C) already and the numerator is the grid.
    """

    site: str
    vector: NDArray[np.float64] = field(repr=False)
    numerator: int

    def encoded(self, parameters: StudyParameters, rounding_seed: bytes) -> Ring:
        """The weighted vector in fixed point, uint64[D]. Raises: UnusableUpdate"""
        scaled = self.vector * (self.numerator / parameters.weight_grid)
        return fixed_point.encode(scaled, parameters, rounding_seed)


@dataclass(frozen=True)
class CountsInput:
    """A site's examples of each class."""

    site: str
    counts: tuple[int, ...]

    def encoded(self, parameters: StudyParameters, rounding_seed: bytes) -> Ring:
        """Plain integers, uint64[D]; nothing is rounded. Raises: UnusableUpdate"""
        return counts_vector(self.counts, parameters)
