"""Heatmaps beside each other with the same rows and columns, a number in every cell; SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from harness.simulation.drawing.charts import drawn


@dataclass(frozen=True, eq=False)
class Matrix:
    """One panel, float64[rows, columns]; NaN stays grey."""

    title: str
    values: NDArray[np.float64] = field(repr=False)


def matrices_chart(
    panels: Sequence[Matrix], rows: Sequence[str], columns: Sequence[str], label: str, low: float = 0.0
) -> str:
    """One scale of colours from ``low`` to 1 for all panels."""

    def draw() -> Figure:
        width = 1.6 + len(panels) * (0.5 + 0.46 * len(columns))
        figure = Figure(figsize=(width, 1.6 + 0.27 * len(rows)), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for one, panel in zip(axes, panels, strict=True):
            image = one.imshow(panel.values, aspect="auto", cmap="viridis", vmin=low, vmax=1.0, interpolation="nearest")
            one.set_facecolor("#dddddd")
            one.set_title(panel.title, fontsize=9)
            one.set_xticks(range(len(columns)), columns, rotation=40, ha="right")
            _write(one, panel.values, (low + 1.0) / 2)
        axes[0].set_yticks(range(len(rows)), rows)
        figure.colorbar(image, ax=list(axes), label=label)
        return figure

    return drawn(draw)


def _write(axes: Axes, values: NDArray[np.float64], middle: float) -> None:
    """Dark numbers on the light half of the colours, light ones on the dark half."""
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            shown = f"{value:.2f}".replace("0.", ".", 1)
            colour = "black" if value > middle else "white"
            axes.text(column, row, shown, ha="center", va="center", color=colour, fontsize=7)
