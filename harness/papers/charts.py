"""Charts of the pages alone: matrices, lines over sizes, predicted beside achieved, ratios; SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from harness.simulate.charts import COLOURS, Spread, drawn, tidy


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


_LINES_ACROSS: Final = 4
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
    across = min(_LINES_ACROSS, panels)
    rows = -(-panels // across)
    figure = Figure(figsize=(wide * across, high * rows + 0.5), layout="constrained")
    grid = list(np.atleast_1d(figure.subplots(rows, across, squeeze=False)).ravel())
    for unused in grid[panels:]:
        unused.set_visible(False)
    return figure, grid


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9)
    tidy(axes)


_TICKS: Final = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
_LIMIT: Final = 5.0
_HIGHEST: Final = 2.0
"""Ratios of FedAvg beyond the one and of the rule beyond the other, or below 1 / 5, stand at the edge."""
_RATIOS_ACROSS: Final = 3
_KINDS: Final = (("clearly better", COLOURS[2]), ("not clear", "#a0aec0"), ("clearly worse", COLOURS[8]))


@dataclass(frozen=True)
class Dot:
    """A requester: FedAvg's loss and the rule's, over that of training alone. ``better`` and ``worse``: clearly, than
    the better of both. ``few``: of a study of few examples; others are drawn as squares.
    """

    few: bool
    fedavg: float
    rule: float
    better: bool
    worse: bool


@dataclass(frozen=True)
class RatioPanel:
    """One rule."""

    title: str
    dots: tuple[Dot, ...]


def ratios_chart(panels: Sequence[RatioPanel]) -> str:
    """A panel per rule, the same axes in all of them; SVG."""

    def draw() -> Figure:
        rows = -(-len(panels) // _RATIOS_ACROSS)
        figure = Figure(figsize=(3.1 * min(_RATIOS_ACROSS, len(panels)), 2.7 * rows), layout="constrained")
        grid = figure.subplots(rows, min(_RATIOS_ACROSS, len(panels)), squeeze=False).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            _draw(axes, panel)
        for unused in grid[len(panels) :]:
            unused.set_visible(False)
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        return figure

    return drawn(draw)


def _draw(axes: Axes, panel: RatioPanel) -> None:
    low, high = 1 / _LIMIT, _LIMIT
    axes.plot([low, 1, high], [low, 1, 1], color="#4a5568", linewidth=1.2, label="better of both", zorder=1)
    axes.axhline(1.0, color="#4a5568", linewidth=0.6, linestyle=":", zorder=1)
    for place, (name, colour) in enumerate(_KINDS):
        axes.scatter([], [], color=colour, s=18, label=name)
        for few, marker in ((True, "o"), (False, "s")):
            dots = [dot for dot in panel.dots if dot.few is few and _kind(dot) == place]
            x, y = [_within(dot.fedavg, _LIMIT) for dot in dots], [_within(dot.rule, _HIGHEST) for dot in dots]
            axes.scatter(x, y, color=colour, marker=marker, s=18, linewidths=0, zorder=2 + place % 2)
    axes.set(xscale="log", yscale="log", xlim=(low / 1.05, high * 1.05), ylim=(low / 1.05, _HIGHEST * 1.05))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(_TICKS))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel("FedAvg's loss / alone", fontsize=8)
    axes.set_ylabel("the rule's loss / alone", fontsize=8)
    tidy(axes)


def _kind(dot: Dot) -> int:
    return 0 if dot.better else 2 if dot.worse else 1


def _within(ratio: float, highest: float) -> float:
    return min(max(ratio, 1 / _LIMIT), highest)
