"""How a rule does beside training alone, where FedAvg wins and where it loses: one dot per requester."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from harness.simulation.drawing.charts import COLOURS, drawn, tidy

_TICKS: Final = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
_LIMIT: Final = 5.0
_HIGHEST: Final = 2.0
"""Ratios of FedAvg beyond the one and of the rule beyond the other, or below 1 / 5, stand at the edge."""
_ACROSS: Final = 3
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
        rows = -(-len(panels) // _ACROSS)
        figure = Figure(figsize=(3.1 * min(_ACROSS, len(panels)), 2.7 * rows), layout="constrained")
        grid = figure.subplots(rows, min(_ACROSS, len(panels)), squeeze=False).ravel()
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
