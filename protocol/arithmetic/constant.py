"""Columns of one value, whose computed spread is rounding alone: whoever divides by a spread asks here first."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_UNITS: Final = 16
"""A mean that numpy takes of equal numbers is off by up to so many units in the last place."""
Numbers = float | NDArray[np.floating[Any]]


def is_constant(low: Numbers, high: Numbers) -> NDArray[np.bool_]:
    """Tell whether numbers from ``low`` to ``high`` are one but for rounding. Shapes: [...], [...] -> bool[...]"""
    eps = np.finfo(np.result_type(np.asarray(low), np.float32)).eps
    with np.errstate(over="ignore"):
        return np.asarray(np.subtract(high, low) <= _UNITS * eps * np.maximum(np.abs(low), np.abs(high)))


def safe_spread(centre: float, spread: float) -> float:
    """A spread that was computed elsewhere, and 1 where rounding of ``centre`` could have made it."""
    return 1.0 if is_constant(centre - spread, centre + spread) else spread
