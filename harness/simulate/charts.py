"""Means over seeds, and charts of them: curves with error bands, bars, heatmaps; SVG."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import mean
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from harness.engine.history import mean_and_error
from harness.simulate.run_line import RunLine, Values


def of_variant(lines: Sequence[RunLine], variant: str, requester: str | None = None) -> tuple[RunLine, ...]:
    """The runs of one variant, of one requester where it is given, in the order of their seeds."""
    found = (line for line in lines if line.variant == variant and requester in (None, line.requester))
    return tuple(sorted(found, key=lambda line: (line.requester, line.seed)))


COLOURS: Final = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#4a5568", "#b7791f", "#2c7a7b", "#9b2c2c")
Series = list[tuple[Any, ...]]
"""Rows as their kind of plot names them; None where there is no number."""
XY: Final = ("panel", "series", "x", "y", "error")
CELLS: Final = ("row", "column", "value")
_DASHED: Final = (", published", ", tuned")


def curve_rows(found: Mapping[tuple[str, str], Sequence[Values]]) -> Series:
    """Mean and standard error over runs after each round, by panel and series.

    A run that did not reach a round, or has no number there, is left out of its mean; without any the line breaks off.
    """
    rows: Series = []
    for (panel, series), runs in found.items():
        for place, values in enumerate(zip_longest(*runs) if any(runs) else [()], 1):
            known = [value for value in values if value is not None]
            middle, error = mean_and_error(known) if known else (math.nan, None)
            rows.append((panel, series, place, middle, error or 0.0))
    return rows


@dataclass(frozen=True)
class Plot:
    """The form in which a series is drawn; ``up`` and ``across`` name the axes."""

    draw: Callable[[pd.DataFrame, Plot], Figure]
    heads: tuple[str, ...]
    up: str = ""
    across: str = "round"
    floor: float | None = None
    written: bool = False

    def figure(self, rows: Series | Path) -> Figure:
        """The plot of rows, or of a CSV file of them."""
        if isinstance(rows, Path):
            frame = pd.read_csv(rows, dtype={"row": str, "column": str, "shape": str})
        else:
            frame = pd.DataFrame(rows, columns=[*self.heads])
            frame = frame.astype({name: float for name in ("y", "error", "value") if name in self.heads})
        with _style():
            return self.draw(frame, self)

    def svg(self, rows: Series | Path) -> str:
        return drawn(lambda: self.figure(rows))


def curved(up: str, floor: float | None = None) -> Plot:
    """Curves over rounds, a panel each requester."""
    return Plot(curves, XY, up, floor=floor)


def grid(panels: int, across: int, wide: float, high: float) -> tuple[Figure, list[Axes]]:
    """As many axes as there are panels, and those that are left over not shown."""
    across = min(across, panels)
    rows = -(-panels // across)
    figure = Figure(figsize=(wide * across, high * rows), layout="constrained")
    axes = list(figure.subplots(rows, across, squeeze=False).ravel())
    for unused in axes[panels:]:
        unused.set_visible(False)
    return figure, axes[:panels]


def panels_of(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """In the order of the file."""
    filled = frame.assign(panel=frame.panel.fillna(""))
    return [(str(name), of) for name, of in filled.groupby("panel", sort=False)]


def legend(figure: Figure, axes: Sequence[Axes], columns: int = 4) -> None:
    handles: dict[str, Artist] = {}
    for one in axes:
        for handle, name in zip(*one.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )


def curves(frame: pd.DataFrame, plot: Plot) -> Figure:
    """Means with a band of one standard error; published and tuned ones dashed in the colour of theirs."""
    panels = panels_of(frame)
    figure, grid_ = grid(len(panels), 2, 4.4, 2.9)
    names = list(dict.fromkeys(_base(name) for name in frame.series.fillna("")))
    for axes, (title, panel) in zip(grid_, panels, strict=True):
        solid = [name for name in dict.fromkeys(panel.series.fillna("")) if not name.endswith(_DASHED)]
        widths = np.linspace(2.6, 1.0, max(len(solid), 2))  # what lies below shows at the edges
        for name, of in panel.groupby(panel.series.fillna(""), sort=False):
            colour = COLOURS[names.index(_base(name)) % len(COLOURS)]
            if name in solid:
                axes.plot(of.x, of.y, color=colour, label=name or None, linewidth=widths[solid.index(name)])
                error = of.error.fillna(0.0)
                axes.fill_between(of.x, of.y - error, of.y + error, color=colour, alpha=0.2, linewidth=0)
            else:
                axes.plot(of.x, of.y, color=colour, label=name, linewidth=1, linestyle="--")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(plot.across)
        axes.set_ylabel(plot.up)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if plot.floor is not None:
            axes.set_ylim(bottom=plot.floor)
        tidy(axes)
    if names != [""]:
        legend(figure, grid_)
    return figure


def _base(name: str) -> str:
    for ending in _DASHED:
        name = name.removesuffix(ending)
    return name


def table_of_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Values by row and column, in the order of the file."""
    rows, columns = (list(dict.fromkeys(frame[name])) for name in ("row", "column"))
    return frame.pivot_table(index="row", columns="column", values="value", dropna=False).reindex(rows)[columns]


def heat(frame: pd.DataFrame, plot: Plot) -> Figure:
    """Colours by row and column; missing values stay grey. ``written``: large cells with their values in them."""
    values = table_of_cells(frame)
    rows, columns = values.shape
    size = (
        (3.2 + 0.8 * columns, 1.6 + 0.5 * rows)
        if plot.written
        else (min(12.0, 2.0 + 0.28 * columns), 1.2 + 0.22 * rows)
    )
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = cells(axes, values)
    if plot.written:
        write_values(axes, values, np.nanmean([np.nanmin(values), np.nanmax(values)]), 8)
    figure.colorbar(image, ax=axes, label=plot.up)
    axes.set_yticks(range(rows), values.index)
    step = max(1, columns // 30)
    axes.set_xticks(range(0, columns, step), values.columns[::step], rotation=30 if plot.written else 90)
    return figure


def cells(axes: Axes, values: pd.DataFrame, low: float | None = None, high: float | None = None) -> AxesImage:
    axes.set_facecolor("#dddddd")
    return axes.imshow(values, aspect="auto", cmap="viridis", interpolation="nearest", vmin=low, vmax=high)


def write_values(axes: Axes, values: pd.DataFrame, middle: float, size: int) -> None:
    """Dark numbers on the light half of the colours, light ones on the dark half."""
    for (row, column), value in np.ndenumerate(values.to_numpy()):
        if not np.isnan(value):
            colour = "black" if value > middle else "white"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=size)


def drawn(draw: Callable[[], Figure]) -> str:
    """A figure in the pages' style, as SVG."""
    with _style():
        buffer = io.StringIO()
        draw().savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def tidy(axes: Axes) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _style() -> AbstractContextManager[None]:
    found: AbstractContextManager[None] = mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "moiety", "font.size": 9}
    )
    return found


def similarity_rows(lines: Sequence[RunLine], variant: str) -> Series:
    """Mean ||g_i - g_0|| / ||g_0|| over rounds and seeds: a row per requester, a column per contributor.

    NaN where nothing was opened, such as of a requester from itself. The matrix need not be symmetric: each row is
    another study, with another model.
    """
    names = sorted({line.requester for line in lines} | {site for line in lines for site in line.distance})
    rows: Series = []
    for requester in names:
        runs = of_variant(lines, variant, requester)
        for site in names:
            ratios = [ratio for run in runs for ratio in _ratios(run, site) if ratio is not None]
            rows.append((f"{requester} asks", site, mean(ratios) if ratios else math.nan))
    return rows


def over_rounds_rows(run: RunLine) -> Series:
    """One run's sites by rounds, relative distance; None where it was not opened."""
    return [
        (name, str(number), ratio)
        for name in sorted(run.distance)
        for number, ratio in enumerate(_ratios(run, name), 1)
    ]


DISTANCES: Final = Plot(heat, CELLS, "relative distance")


def _ratios(run: RunLine, site: str) -> Values:
    norms = run.requester_norm
    both = zip(run.distance.get(site, (None,) * len(norms)), norms, strict=True)
    return tuple(distance / norm if distance is not None and norm else None for distance, norm in both)
