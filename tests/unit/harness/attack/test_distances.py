"""Distances to known points locate an update in part: docs/threat_model.md and docs/results/robustness.md.

With x = g - g_0 and b_j = p_j - g_0 they tell <x, b_j> = (||x||^2 + ||b_j||^2 - ||g - p_j||^2) / 2, so the part of x in
the span of the b_j, and of the rest its length.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

D = 12


@pytest.mark.parametrize("colluders", [0, 1, 3, 11, 12, 15])
def test_the_error_over_random_directions_is_the_formula(colluders: int) -> None:
    random, squares = np.random.default_rng(colluders), list[float]()
    for _ in range(400):
        origin = random.normal(size=D)
        points, update = origin + random.normal(size=(colluders, D)), random.normal(size=D)
        x, apart = update - origin, points - origin
        told = (x @ x + np.sum(apart**2, axis=1) - np.sum((update - points) ** 2, axis=1)) / 2
        located = np.linalg.lstsq(apart, told, rcond=1e-10)[0] if colluders else np.zeros(D)
        squares.append(float(np.sum((located - x) ** 2) / (x @ x)))
    assert math.sqrt(np.mean(squares)) == pytest.approx(math.sqrt(max(0.0, 1 - colluders / D)), abs=0.02)
