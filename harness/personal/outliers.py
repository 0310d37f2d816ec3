"""Which entries of the sites' personal layers stand out: the marks of the heatmaps.

Source: Roschewitz et al. 2021: an entry more than two standard deviations from its feature's mean over the sites
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from harness.personal.schemes import SchemeState
from protocol.arithmetic.constant import is_constant
from protocol.errors import ConfigurationError

MARKED_DEVIATIONS: Final = 2.0


@dataclass(frozen=True, eq=False)
class AffineLayers:
    """One affine layer of all sites: ``bias`` b and ``weight`` w, float32[S, n]."""

    bias: NDArray[np.float32]
    weight: NDArray[np.float32]


@dataclass(frozen=True)
class Mark:
    """An entry that stands out: numbers of site and column, and by how many standard deviations, signed."""

    site: int
    column: int
    deviations: float


def affine_layers(state: SchemeState, start: int, columns: int) -> AffineLayers:
    """The layers whose b begins at ``start`` of the personal parameters.

    Raises: ConfigurationError when the sites keep too few
    """
    if state.personal.shape[1] < start + 2 * columns:
        raise ConfigurationError(
            f"the sites keep {state.personal.shape[1]} personal parameters, too few for a layer of {columns} columns"
        )
    bias = state.personal[:, start : start + columns]
    return AffineLayers(bias, state.personal[:, start + columns : start + 2 * columns])


def deviations(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """By how many standard deviations over sites each entry differs from its column's mean; 0 where all agree.

    Shapes: float32[S, n] -> float64[S, n]
    """
    exact = values.astype(np.float64)
    spread = exact.std(axis=0)
    found: NDArray[np.float64] = np.zeros_like(exact)
    np.divide(exact - exact.mean(axis=0), spread, out=found, where=~is_constant(exact.min(axis=0), exact.max(axis=0)))
    return found


def marks(values: NDArray[np.float32], threshold: float = MARKED_DEVIATIONS) -> tuple[Mark, ...]:
    """The entries beyond ``threshold``, those that stand out most first."""
    found = deviations(values)
    sites, columns = np.nonzero(np.abs(found) > threshold)
    marked = [Mark(int(s), int(c), float(found[s, c])) for s, c in zip(sites, columns, strict=True)]
    return tuple(sorted(marked, key=lambda mark: -abs(mark.deviations)))
