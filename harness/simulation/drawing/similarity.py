"""How alike two sites are, by what a requester may see: its relative distance to every contributor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from harness.simulation.drawing.charts import heatmap_chart
from harness.simulation.drawing.spread import of_variant
from harness.simulation.runs import RunLine


def relative_distances(lines: Sequence[RunLine], variant: str) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Sites, and mean ||g_i - g_0|| / ||g_0|| over rounds and seeds: a row per requester, a column per contributor.

    NaN where nothing was opened, such as of a requester from itself. The matrix need not be symmetric: each row is
    another study, with another model.
    """
    names = tuple(sorted({line.requester for line in lines} | {site for line in lines for site in line.distance}))
    found = np.full((len(names), len(names)), math.nan)
    for row, requester in enumerate(names):
        for column, site in enumerate(names):
            values = [value for run in of_variant(lines, variant, requester) for value in _relative(run, site)]
            if values:
                found[row, column] = mean(values)
    return names, found


def distances_over_rounds(run: RunLine) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """One run: sites by rounds, relative distance; NaN where it was not opened."""
    names = tuple(sorted(run.distance))
    rounds = len(run.requester_norm)
    table = [[_ratio(run.distance[name][r], run.requester_norm[r]) for r in range(rounds)] for name in names]
    return names, np.array([[math.nan if value is None else value for value in row] for row in table], dtype=float)


def similarity_chart(lines: Sequence[RunLine], variant: str, written: bool = False) -> str:
    """A heatmap of :func:`relative_distances`; ``written``: with the values in the cells."""
    names, found = relative_distances(lines, variant)
    return heatmap_chart(found, [f"{name} asks" for name in names], names, "relative distance", written=written)


def over_rounds_chart(run: RunLine) -> str:
    """A heatmap of :func:`distances_over_rounds`."""
    names, found = distances_over_rounds(run)
    return heatmap_chart(found, names, [str(r + 1) for r in range(found.shape[1])], "relative distance")


def _relative(run: RunLine, site: str) -> list[float]:
    values = run.distance.get(site, (None,) * len(run.requester_norm))
    ratios = (_ratio(value, norm) for value, norm in zip(values, run.requester_norm, strict=True))
    return [ratio for ratio in ratios if ratio is not None]


def _ratio(distance: float | None, norm: float | None) -> float | None:
    return distance / norm if distance is not None and norm else None
