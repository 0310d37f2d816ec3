"""Means over seeds, and charts of them: curves with error bands, bars, heatmaps; SVG."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from harness.simulate.run_line import RunLine, Values


@dataclass(frozen=True)
class Spread:
    """``error`` is the standard error of the mean, None for one value."""

    mean: float
    error: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """NaN is kept: a run that failed shows. Raises: ValueError for no value"""
        found = list(values)
        usable = not any(math.isnan(value) for value in found)
        error = stdev(found) / math.sqrt(len(found)) if usable and len(found) > 1 else None
        return cls(mean(found), error, len(found))

    @property
    def clearly_positive(self) -> bool:
        """More than two standard errors above nothing."""
        return self.error is not None and self.mean > 2 * self.error

    @property
    def clearly_negative(self) -> bool:
        """More than two standard errors below nothing."""
        return self.error is not None and self.mean < -2 * self.error

    def __str__(self) -> str:
        """.783 ± .004"""
        if math.isnan(self.mean):
            return "failed"
        return number(self.mean) if self.error is None else f"{number(self.mean, 3)} ± {number(self.error, 3)}"


def number(value: float, digits: int | None = None) -> str:
    """No zero before the point, as the papers print accuracies; three digits after it, four above .99."""
    digits = digits or (4 if 0.99 <= value < 1 else 3)
    return f"{value:.{digits}f}".replace("0.", ".", 1) if 0 <= value < 1 else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Curve:
    """Mean and standard error over runs, one value per round."""

    label: str
    means: tuple[float, ...]
    errors: tuple[float, ...]


def curve(label: str, runs: Sequence[Values]) -> Curve:
    """Rounds that a run did not reach, or without a number, are left out of that round's mean."""
    length = max((len(run) for run in runs), default=0)
    means, errors = [], []
    for place in range(length):
        values = [value for run in runs if place < len(run) and (value := run[place]) is not None]
        means.append(mean(values) if values else math.nan)
        errors.append(stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0)
    return Curve(label, tuple(means), tuple(errors))


def of_variant(lines: Sequence[RunLine], variant: str, requester: str | None = None) -> tuple[RunLine, ...]:
    """The runs of one variant, of one requester where it is given, in the order of their seeds."""
    found = (line for line in lines if line.variant == variant and requester in (None, line.requester))
    return tuple(sorted(found, key=lambda line: (line.requester, line.seed)))


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
