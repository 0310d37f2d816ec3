"""Charts over numbers that are no rounds: lines over sizes, and what was predicted beside what came; SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.simulation.drawing.charts import COLOURS, drawn, tidy
from harness.simulation.drawing.spread import Spread

_ACROSS: Final = 4
_MARKERS: Final = ("o", "s", "^", "D", "v", "P")


@dataclass(frozen=True)
class Line:
    """A line over sizes, one spread each; ``dashed`` ones are what the others are compared with."""

    label: str
    sizes: tuple[int, ...]
    spreads: tuple[Spread, ...]
    dashed: bool = False


@dataclass(frozen=True)
class LinesPanel:
    """One set of axes."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Point:
    """What was predicted and what came; ``colour`` and ``shape`` name the groups that it belongs to."""

    predicted: float
    achieved: float
    colour: str
    shape: str


@dataclass(frozen=True)
class PointsPanel:
    """One set of axes. ``ratio``: what came is over something else, so the line to compare with is 1; ``ratio`` is its
    label.
    """

    title: str
    points: tuple[Point, ...]
    ratio: str | None = None


def lines_chart(panels: Sequence[LinesPanel], across: str, up: str) -> str:
    """Lines over sizes that double, one standard error as bars; the same label has the same colour in all panels."""
    names = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))

    def draw() -> Figure:
        figure, grid = _grid(len(panels), 2.5, 2.2)
        for axes, panel in zip(grid, panels, strict=False):
            for line in panel.lines:
                means = [spread.mean for spread in line.spreads]
                errors = [spread.error or 0.0 for spread in line.spreads]
                style, colour = ("--" if line.dashed else "-"), COLOURS[names.index(line.label) % len(COLOURS)]
                axes.errorbar(line.sizes, means, errors, color=colour, linestyle=style, marker=".", label=line.label)
            axes.set_xscale("log", base=2)
            axes.set_xlabel(across)
            axes.set_ylabel(up)
            _finish(axes, panel.title)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        return figure

    return drawn(draw)


def points_chart(panels: Sequence[PointsPanel], across: str, up: str, limit: float) -> str:
    """One dot a run; on the line what came is what was predicted. Beyond ``limit`` they stand at the edge."""
    points = [point for panel in panels for point in panel.points]
    colours, shapes = (list(dict.fromkeys(of)) for of in zip(*((one.colour, one.shape) for one in points), strict=True))

    def draw() -> Figure:
        figure, grid = _grid(len(panels), 3.1, 2.9)
        for axes, panel in zip(grid, panels, strict=False):
            axes.plot([0, limit], [0, limit] if panel.ratio is None else [1, 1], color="#777777", linewidth=0.8)
            for point in panel.points:
                axes.plot(
                    min(point.predicted, limit),
                    min(point.achieved, limit),
                    marker=_MARKERS[shapes.index(point.shape) % len(_MARKERS)],
                    color=COLOURS[colours.index(point.colour) % len(COLOURS)],
                    alpha=0.7,
                    markersize=4,
                    linestyle="none",
                )
            axes.set_xlim(-0.02 * limit, 1.02 * limit)
            axes.set_ylim(-0.02 * limit, 1.02 * limit)
            axes.set_xlabel(across)
            axes.set_ylabel(up if panel.ratio is None else panel.ratio)
            _finish(axes, panel.title)
        handles = [
            Line2D([], [], color=COLOURS[i % len(COLOURS)], marker="o", ls="", label=name)
            for i, name in enumerate(colours)
        ]
        if len(shapes) > 1:
            handles += [
                Line2D([], [], color="#555555", marker=_MARKERS[i % len(_MARKERS)], ls="", label=name)
                for i, name in enumerate(shapes)
            ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        return figure

    return drawn(draw)


def _grid(panels: int, wide: float, high: float) -> tuple[Figure, list[Axes]]:
    """As many axes as there are panels, and those that are left over not shown."""
    across = min(_ACROSS, panels)
    rows = -(-panels // across)
    figure = Figure(figsize=(wide * across, high * rows + 0.5), layout="constrained")
    grid = list(np.atleast_1d(figure.subplots(rows, across, squeeze=False)).ravel())
    for unused in grid[panels:]:
        unused.set_visible(False)
    return figure, grid


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9)
    tidy(axes)
