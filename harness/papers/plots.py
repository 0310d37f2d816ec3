"""The plots of docs/results, drawn from their series in docs/results/data/plots: same numbers, same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from harness.simulate.charts import (
    CELLS,
    COLOURS,
    XY,
    Plot,
    cells,
    curved,
    grid,
    heat,
    legend,
    panels_of,
    table_of_cells,
    tidy,
    write_values,
)

_MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_CLEAR: Final = {"clearly better": COLOURS[2], "not clear": "#a0aec0", "clearly worse": COLOURS[8]}
_FARTHEST, _HIGHEST = 5.0, 2.0
"""Ratios of FedAvg beyond the one and of the rule beyond the other, or below 1 / 5, stand at the edge."""


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
    legend(figure, [axes], len(names))
    return figure


def _matrices(frame: pd.DataFrame, plot: Plot) -> Figure:
    """Heatmaps beside each other with a number in every cell, one scale of colours from 0 to 1."""
    panels = panels_of(frame)
    rows, columns = table_of_cells(panels[0][1]).shape
    figure = Figure(figsize=(1.6 + len(panels) * (0.5 + 0.46 * columns), 1.6 + 0.27 * rows), layout="constrained")
    grid_ = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (title, panel) in zip(grid_, panels, strict=True):
        values = table_of_cells(panel)
        image = cells(axes, values, low=0.0, high=1.0)
        write_values(axes, values, 0.5, 7)
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(columns), values.columns, rotation=40, ha="right")
    grid_[0].set_yticks(range(rows), values.index)
    figure.colorbar(image, ax=list(grid_), label=plot.up)
    return figure


def _lines(frame: pd.DataFrame, plot: Plot) -> Figure:
    """Lines over sizes that double, one standard error as bars; what a guess finds is dashed."""
    panels = panels_of(frame)
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
    legend(figure, grid_)
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
    panels = panels_of(frame)
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
    legend(figure, grid_)
    return figure


_DISTANCES: Final = Plot(heat, CELLS, "relative distance", written=True)
_ERRORS: Final = Plot(heat, CELLS, "relative error")
_CLASSES: Final = Plot(heat, CELLS, "accuracy")
_POISONED: Final = Plot(_matrices, ("panel", *CELLS), "accuracy")
_PREDICTED: Final = Plot(_points, ("panel", "axis", "x", "y", "colour", "shape"), across="isolation (predicted error)")
PLOTS: Final[Mapping[str, Plot]] = {
    "titanic_age_strict_accuracy": curved("test accuracy"),
    "titanic_age_strict_weights": curved("weight (requester: 1)", 0.0),
    "titanic_age_strict_model": Plot(_bars, XY, "weight: log odds of survival\nper unit of the feature"),
    "titanic_age_strict_similarity": _DISTANCES,
    "titanic_age_some_accuracy": curved("test accuracy"),
    "titanic_age_some_weights": curved("weight (requester: 1)", 0.0),
    "titanic_age_some_model": Plot(_bars, XY, "weight: log odds of survival\nper unit of the feature"),
    "titanic_age_some_similarity": _DISTANCES,
    "heart_disease_accuracy": curved("test accuracy"),
    "heart_disease_log_loss": curved("test log-loss"),
    "heart_disease_weights": curved("weight", 0.0),
    "heart_disease_similarity": _DISTANCES,
    "survival_c_index": curved("test C-index"),
    "survival_weights": curved("weight", 0.0),
    "regression_rmse": curved("test RMSE"),
    "regression_weights": curved("weight", 0.0),
    "mnist_accuracy": curved("accuracy"),
    "mnist_weights": curved("mean weight", 0.0),
    "har_strategies_accuracy": curved("accuracy"),
    "har_strategies_random_classes": _CLASSES,
    "har_strategies_majority_even_classes": _CLASSES,
    "har_strategies_majority_classes": _CLASSES,
    "har_strategies_pick_two_classes": _CLASSES,
    "har_ifedavg_scores": curved("F1"),
    "does_it_pay_ratios": Plot(_ratios, ("panel", "x", "y", "colour", "shape")),
    "differential_privacy_heart": Plot(_bars, XY, "test accuracy"),
    "differential_privacy_mnist": Plot(_bars, XY, "test accuracy"),
    "sums_errors": curved("relative error", 0.0),
    "sums_demo_before": _ERRORS,
    "sums_demo_now": _ERRORS,
    "sums_full_batches": _ERRORS,
    "privacy_records": Plot(_lines, XY, "read closely", "records in the sum"),
    "privacy_membership": curved("area under the curve"),
    "privacy_differencing": _PREDICTED,
    "privacy_isolation": _PREDICTED,
    "robustness_poisoning_matrix": _POISONED,
    "robustness_poisoning_alike_matrix": _POISONED,
    "reliability_endurance": curved("", 0.0),
}
