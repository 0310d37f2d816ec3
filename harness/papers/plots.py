"""The plots of docs/results, drawn from their series in docs/results/data/plots: same numbers, same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from harness.simulate.charts import COLOURS, Curve, drawn, tidy

Series = list[tuple[Any, ...]]
"""Rows as their kind of plot names them; None where there is no number."""
XY: Final = ("panel", "series", "x", "y", "error")
CELLS: Final = ("row", "column", "value")
_DASHED: Final = (", published", ", tuned")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_CLEAR: Final = {"clearly better": COLOURS[2], "not clear": "#a0aec0", "clearly worse": COLOURS[8]}
_FARTHEST, _HIGHEST = 5.0, 2.0
"""Ratios of FedAvg beyond the one and of the rule beyond the other, or below 1 / 5, stand at the edge."""


def curve_rows(curves: Mapping[tuple[str, str], Curve | Sequence[float]]) -> Series:
    """Read, by panel and series, a curve over rounds; a published one has no error. Rounds without a number are left
    out.
    """
    rows: Series = []
    for (panel, series), of in curves.items():
        dashed = series.endswith(_DASHED)
        means, errors = (of.means, of.errors) if isinstance(of, Curve) else (tuple(of), (None,) * len(of))
        for place, (value, error) in enumerate(zip(means, errors, strict=True), 1):
            rows.append((panel, series, place, value, None if dashed else error))
    return [row for row in rows if not np.isnan(row[3])]


def heat_rows(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]] | NDArray[np.float64]
) -> Series:
    """Read a value by row and column."""
    return [(row, column, values[i][j]) for i, row in enumerate(rows) for j, column in enumerate(columns)]


@dataclass(frozen=True)
class Plot:
    """The form in which a series is drawn; ``up`` and ``across`` name the axes."""

    draw: Callable[[pd.DataFrame, Plot], Figure]
    heads: tuple[str, ...]
    up: str = ""
    across: str = "round"
    floor: float | None = None
    written: bool = False

    def svg(self, path: Path) -> str:
        return drawn(lambda: self.draw(pd.read_csv(path, dtype={"row": str, "column": str, "shape": str}), self))


def grid(panels: int, across: int, wide: float, high: float) -> tuple[Figure, list[Axes]]:
    """As many axes as there are panels, and those that are left over not shown."""
    across = min(across, panels)
    rows = -(-panels // across)
    figure = Figure(figsize=(wide * across, high * rows), layout="constrained")
    axes = list(figure.subplots(rows, across, squeeze=False).ravel())
    for unused in axes[panels:]:
        unused.set_visible(False)
    return figure, axes[:panels]


def _of_panels(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """In the order of the file."""
    filled = frame.assign(panel=frame.panel.fillna(""))
    return [(str(name), of) for name, of in filled.groupby("panel", sort=False)]


def _legend(figure: Figure, axes: Sequence[Axes], columns: int = 4) -> None:
    handles: dict[str, Artist] = {}
    for one in axes:
        for handle, name in zip(*one.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )


def _curves(frame: pd.DataFrame, plot: Plot) -> Figure:
    """Means with a band of one standard error; published and tuned ones dashed in the colour of theirs."""
    panels = _of_panels(frame)
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
        _legend(figure, grid_)
    return figure


def _base(name: str) -> str:
    for ending in _DASHED:
        name = name.removesuffix(ending)
    return name


def _bars(frame: pd.DataFrame, plot: Plot) -> Figure:
    """Grouped bars with one standard error."""
    groups, names = list(dict.fromkeys(frame.x)), list(dict.fromkeys(frame.series))
    figure = Figure(figsize=(max(6.0, 0.3 * len(groups) * len(names)), 3.4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(names)
    for place, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        of = frame[frame.series == name]
        at = np.array([groups.index(group) for group in of.x]) + (place - (len(names) - 1) / 2) * width
        axes.bar(at, of.y, width, yerr=of.error.fillna(0.0), color=colour, label=name)
    axes.set_xticks(range(len(groups)), groups, rotation=30 if max(map(len, groups)) > 6 else 0, ha="right")
    axes.set_ylabel(plot.up)
    axes.set_axisbelow(True)
    axes.axhline(0.0, color="#333333", linewidth=0.8)
    tidy(axes)
    axes.grid(visible=False, axis="x")
    _legend(figure, [axes], len(names))
    return figure


def _table_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Values by row and column, in the order of the file."""
    rows, columns = (list(dict.fromkeys(frame[name])) for name in ("row", "column"))
    return frame.pivot_table(index="row", columns="column", values="value", dropna=False).reindex(rows)[columns]


def _heat(frame: pd.DataFrame, plot: Plot) -> Figure:
    """Colours by row and column; missing values stay grey. ``written``: large cells with their values in them."""
    values = _table_of(frame)
    rows, columns = values.shape
    size = (
        (3.2 + 0.8 * columns, 1.6 + 0.5 * rows)
        if plot.written
        else (min(12.0, 2.0 + 0.28 * columns), 1.2 + 0.22 * rows)
    )
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = _cells(axes, values)
    if plot.written:
        _write(axes, values, np.nanmean([np.nanmin(values), np.nanmax(values)]), 8)
    figure.colorbar(image, ax=axes, label=plot.up)
    axes.set_yticks(range(rows), values.index)
    step = max(1, columns // 30)
    axes.set_xticks(range(0, columns, step), values.columns[::step], rotation=30 if plot.written else 90)
    return figure


def _matrices(frame: pd.DataFrame, plot: Plot) -> Figure:
    """Heatmaps beside each other with a number in every cell, one scale of colours from 0 to 1."""
    panels = _of_panels(frame)
    rows, columns = _table_of(panels[0][1]).shape
    figure = Figure(figsize=(1.6 + len(panels) * (0.5 + 0.46 * columns), 1.6 + 0.27 * rows), layout="constrained")
    grid_ = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (title, panel) in zip(grid_, panels, strict=True):
        values = _table_of(panel)
        image = _cells(axes, values, low=0.0, high=1.0)
        _write(axes, values, 0.5, 7)
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(columns), values.columns, rotation=40, ha="right")
    grid_[0].set_yticks(range(rows), values.index)
    figure.colorbar(image, ax=list(grid_), label=plot.up)
    return figure


def _cells(axes: Axes, values: pd.DataFrame, low: float | None = None, high: float | None = None) -> AxesImage:
    axes.set_facecolor("#dddddd")
    return axes.imshow(values, aspect="auto", cmap="viridis", interpolation="nearest", vmin=low, vmax=high)


def _write(axes: Axes, values: pd.DataFrame, middle: float, size: int) -> None:
    """Dark numbers on the light half of the colours, light ones on the dark half."""
    for (row, column), value in np.ndenumerate(values.to_numpy()):
        if not np.isnan(value):
            colour = "black" if value > middle else "white"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=size)


def _lines(frame: pd.DataFrame, plot: Plot) -> Figure:
    """Lines over sizes that double, one standard error as bars; what a guess finds is dashed."""
    panels = _of_panels(frame)
    figure, grid_ = grid(len(panels), 4, 2.5, 2.4)
    names = list(dict.fromkeys(frame.series))
    for axes, (title, panel) in zip(grid_, panels, strict=True):
        for name, of in panel.groupby("series", sort=False):
            style, colour = ("--" if name == "guess" else "-"), COLOURS[names.index(name)]
            axes.errorbar(of.x, of.y, of.error.fillna(0.0), color=colour, linestyle=style, marker=".", label=name)
        axes.set_xscale("log", base=2)
        axes.set_xlabel(plot.across)
        axes.set_ylabel(plot.up)
        axes.set_title(title, fontsize=9)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        tidy(axes)
    _legend(figure, grid_)
    return figure


def _points(frame: pd.DataFrame, plot: Plot) -> Figure:
    """One dot a run; on the line what came is what was predicted. Runs beyond the limit stand at the edge."""
    limit = 1.2
    colours, shapes = (list(dict.fromkeys(frame[name].fillna(""))) for name in ("colour", "shape"))
    panels = list(frame.groupby(["panel", "axis"], sort=False))
    figure, grid_ = grid(len(panels), 4, 3.1, 3.2)
    for axes, ((title, up), panel) in zip(grid_, panels, strict=True):
        axes.plot([0, limit], [1, 1] if up.startswith("over") else [0, limit], color="#777777", linewidth=0.8)
        for one in panel.fillna({"colour": "", "shape": ""}).itertuples():
            colour, marker = COLOURS[colours.index(one.colour)], _MARKERS[shapes.index(one.shape)]
            axes.plot(one.x, one.y, marker=marker, color=colour, alpha=0.7, markersize=4, linestyle="none")
        axes.set(xlim=(-0.02 * limit, 1.02 * limit), ylim=(-0.02 * limit, 1.02 * limit), xlabel=plot.across, ylabel=up)
        axes.set_title(title, fontsize=9)
        tidy(axes)
    marks = [Line2D([], [], color=COLOURS[i], marker="o", ls="", label=name) for i, name in enumerate(colours)]
    if len(shapes) > 1:
        marks += [
            Line2D([], [], color="#555555", marker=_MARKERS[i], ls="", label=name) for i, name in enumerate(shapes)
        ]
    figure.legend(handles=marks, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _ratios(frame: pd.DataFrame, plot: Plot) -> Figure:
    """A panel per rule: its loss against FedAvg's, both over that of training alone, one dot per requester."""
    panels = _of_panels(frame)
    figure, grid_ = grid(len(panels), 3, 3.1, 2.7)
    low, high = 1 / _FARTHEST, _FARTHEST
    for axes, (title, panel) in zip(grid_, panels, strict=True):
        axes.plot([low, 1, high], [low, 1, 1], color="#4a5568", linewidth=1.2, label="better of both", zorder=1)
        axes.axhline(1.0, color="#4a5568", linewidth=0.6, linestyle=":", zorder=1)
        for place, (name, colour) in enumerate(_CLEAR.items()):
            axes.scatter([], [], color=colour, s=18, label=name)
            for shape, marker in (("few examples", "o"), ("more parameters", "s")):
                of = panel[(panel.colour == name) & (panel["shape"] == shape)]
                x, y = of.x.clip(low, high), of.y.clip(low, _HIGHEST)
                axes.scatter(x, y, color=colour, marker=marker, s=18, linewidths=0, zorder=2 + place % 2)
        axes.set(xscale="log", yscale="log", xlim=(low / 1.05, high * 1.05), ylim=(low / 1.05, _HIGHEST * 1.05))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator((0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("FedAvg's loss / alone", fontsize=8)
        axes.set_ylabel("the rule's loss / alone", fontsize=8)
        tidy(axes)
    _legend(figure, grid_)
    return figure


def _curved(up: str, floor: float | None = None) -> Plot:
    return Plot(_curves, XY, up, floor=floor)


_DISTANCES: Final = Plot(_heat, CELLS, "relative distance", written=True)
_ERRORS: Final = Plot(_heat, CELLS, "relative error")
_CLASSES: Final = Plot(_heat, CELLS, "accuracy")
_POISONED: Final = Plot(_matrices, ("panel", *CELLS), "accuracy")
_PREDICTED: Final = Plot(_points, ("panel", "axis", "x", "y", "colour", "shape"), across="isolation (predicted error)")
PLOTS: Final[Mapping[str, Plot]] = {
    "titanic_age_strict_accuracy": _curved("test accuracy"),
    "titanic_age_strict_weights": _curved("weight (requester: 1)", 0.0),
    "titanic_age_strict_model": Plot(_bars, XY, "weight: log odds of survival\nper unit of the feature"),
    "titanic_age_strict_similarity": _DISTANCES,
    "titanic_age_some_accuracy": _curved("test accuracy"),
    "titanic_age_some_weights": _curved("weight (requester: 1)", 0.0),
    "titanic_age_some_model": Plot(_bars, XY, "weight: log odds of survival\nper unit of the feature"),
    "titanic_age_some_similarity": _DISTANCES,
    "heart_disease_accuracy": _curved("test accuracy"),
    "heart_disease_log_loss": _curved("test log-loss"),
    "heart_disease_weights": _curved("weight", 0.0),
    "heart_disease_similarity": _DISTANCES,
    "survival_c_index": _curved("test C-index"),
    "survival_weights": _curved("weight", 0.0),
    "regression_rmse": _curved("test RMSE"),
    "regression_weights": _curved("weight", 0.0),
    "mnist_accuracy": _curved("accuracy"),
    "mnist_weights": _curved("mean weight", 0.0),
    "har_strategies_accuracy": _curved("accuracy"),
    "har_strategies_random_classes": _CLASSES,
    "har_strategies_majority_even_classes": _CLASSES,
    "har_strategies_majority_classes": _CLASSES,
    "har_strategies_pick_two_classes": _CLASSES,
    "har_ifedavg_scores": _curved("F1"),
    "does_it_pay_ratios": Plot(_ratios, ("panel", "x", "y", "colour", "shape")),
    "differential_privacy_heart": Plot(_bars, XY, "test accuracy"),
    "differential_privacy_mnist": Plot(_bars, XY, "test accuracy"),
    "sums_errors": _curved("relative error", 0.0),
    "sums_demo_before": _ERRORS,
    "sums_demo_now": _ERRORS,
    "sums_full_batches": _ERRORS,
    "privacy_records": Plot(_lines, XY, "read closely", "records in the sum"),
    "privacy_membership": _curved("area under the curve"),
    "privacy_differencing": _PREDICTED,
    "privacy_isolation": _PREDICTED,
    "robustness_poisoning_matrix": _POISONED,
    "robustness_poisoning_alike_matrix": _POISONED,
    "reliability_endurance": _curved("", 0.0),
}
