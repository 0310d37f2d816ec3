"""Charts of runs: curves with error bands, heatmaps; SVG, the same bytes for the same numbers."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from harness.simulation.drawing.spread import Curve

COLOURS: Final = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#4a5568", "#b7791f", "#2c7a7b", "#9b2c2c")
ACROSS: Final = 2
"""Panels beside each other."""


@dataclass(frozen=True)
class Panel:
    """One set of axes: curves, and others dashed in the same colours, which the legend calls ``dashed_are``."""

    title: str
    curves: tuple[Curve, ...]
    dashed: tuple[Curve, ...] = ()
    dashed_are: str = "published"


def curves_chart(panels: Sequence[Panel], label: str, floor: float | None = None) -> str:
    """``curves_figure`` as SVG."""
    return drawn(lambda: curves_figure(panels, label, floor))


def curves_figure(panels: Sequence[Panel], label: str, floor: float | None = None) -> Figure:
    """Curves over rounds, the mean with a band of one standard error; without band where it is dashed.

    One colour per label, the same in all panels.
    """
    names = list(dict.fromkeys(curve.label for panel in panels for curve in (*panel.curves, *panel.dashed)))

    def draw(axes: Axes, panel: Panel) -> None:
        widths = np.linspace(2.6, 1.0, max(len(panel.curves), 2))  # what lies below shows at the edges
        for one, width in zip(panel.curves, widths, strict=False):
            colour = COLOURS[names.index(one.label) % len(COLOURS)]
            rounds = np.arange(1, len(one.means) + 1)
            low, high = np.array(one.means) - one.errors, np.array(one.means) + one.errors
            axes.plot(rounds, one.means, color=colour, label=one.label, linewidth=width)
            axes.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
        for one in panel.dashed:
            colour = COLOURS[names.index(one.label) % len(COLOURS)]
            rounds = np.arange(1, len(one.means) + 1)
            axes.plot(
                rounds, one.means, color=colour, label=f"{one.label}, {panel.dashed_are}", linewidth=1, linestyle="--"
            )
        axes.set_xlabel("round")
        axes.set_ylabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if floor is not None:
            axes.set_ylim(bottom=floor)

    return _panels(panels, draw)


def heatmap_chart(
    values: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    label: str,
    written: bool = False,
) -> str:
    """Sites by something; missing values (NaN) stay grey.

    ``written``: large cells with their values in them, for a few rows and columns.
    """
    with _style():
        size = (3.2 + 0.8 * len(columns), 1.6 + 0.5 * len(rows)) if written else _cells_size(rows, columns)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        axes.set_facecolor("#dddddd")
        image = axes.imshow(values, aspect="auto", cmap="viridis", interpolation="nearest")
        axes.set_yticks(range(len(rows)), rows)
        step = max(1, len(columns) // 30)
        axes.set_xticks(range(0, len(columns), step), columns[::step], rotation=30 if written else 90)
        if written:
            _write_values(axes, values)
        figure.colorbar(image, ax=axes, label=label)
        return _svg(figure)


def _cells_size(rows: Sequence[str], columns: Sequence[str]) -> tuple[float, float]:
    return min(12.0, 2.0 + 0.28 * len(columns)), 1.2 + 0.22 * len(rows)


def _write_values(axes: Axes, values: NDArray[np.float64]) -> None:
    """Dark on the light half of the colours, light on the dark one."""
    known = [(place, value) for place, value in np.ndenumerate(values) if not np.isnan(value)]
    if known:
        middle = (min(value for _, value in known) + max(value for _, value in known)) / 2
        for (row, column), value in known:
            colour = "black" if value > middle else "white"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)


def _panels(panels: Sequence[Panel], draw: Callable[[Axes, Panel], None]) -> Figure:
    with _style():
        rows = -(-len(panels) // ACROSS)
        across = min(ACROSS, len(panels))
        figure = Figure(figsize=(4.4 * across, 2.9 * rows), layout="constrained")
        grid = np.atleast_1d(figure.subplots(rows, across)).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            draw(axes, panel)
            axes.set_title(panel.title, fontsize=9)
            tidy(axes)
        for unused in grid[len(panels) :]:
            unused.set_visible(False)
        handles: dict[str, Artist] = {}
        for axes in grid[: len(panels)]:
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(name, handle)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        return figure


def drawn(draw: Callable[[], Figure]) -> str:
    """A figure in the pages' style, as SVG."""
    with _style():
        return _svg(draw())


def tidy(axes: Axes) -> None:
    """A light grid, and no frame."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _style() -> AbstractContextManager[None]:
    found: AbstractContextManager[None] = mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "moiety", "font.size": 9}
    )
    return found


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
