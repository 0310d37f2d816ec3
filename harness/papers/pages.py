"""Tables and plots put into pages whose text is written by hand: docs/results."""

from __future__ import annotations

import csv
import io
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from harness.papers.tables import Table
from harness.simulate.charts import (
    CELLS,
    COLOURS,
    XY,
    Plot,
    Series,
    cells,
    curves,
    grid,
    heat,
    legend,
    panels_of,
    table_of_cells,
    tidy,
    write_values,
)
from host.output_files import rewrite
from protocol.errors import ConfigurationError
from protocol.text import printable

_MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_CLEAR: Final = {"clearly better": COLOURS[2], "not clear": "#a0aec0", "clearly worse": COLOURS[8]}
_FARTHEST, _HIGHEST = 5.0, 2.0
"""Ratios of FedAvg beyond the one and of the rule beyond the other, or below 1 / 5, stand at the edge."""


def _bars(frame: pd.DataFrame, plot: Plot) -> Figure:
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


_KINDS: Final = {
    "curves": (curves, XY),
    "bars": (_bars, XY),
    "lines": (_lines, XY),
    "heat": (heat, CELLS),
    "matrices": (_matrices, ("panel", *CELLS)),
    "points": (_points, ("panel", "axis", "x", "y", "colour", "shape")),
    "ratios": (_ratios, ("panel", "x", "y", "colour", "shape")),
}
PLOTS: Final[Mapping[str, Plot]] = {
    name: Plot(*_KINDS[form.pop("kind")], **form)
    for name, form in tomllib.loads(Path(__file__).with_name("plots.toml").read_text(encoding="utf-8")).items()
}


_TABLE: Final = re.compile(r"<!-- table: (\w+) -->\n(?:(?!<!-- table:).)*?<!-- end -->", re.DOTALL)
_BREAKS_A_TABLE: Final = re.compile(r"[\r\n|]|<!--")
_PLOT: Final = re.compile(r"!\[[^\]]*\]\((\w+)\.svg\)")


def write_data(folder: Path, name: str, content: Table | Series) -> bool:
    """Write a table, or the series of ``plots/NAME``. Returns whether the file is another one than before."""
    path = folder / f"{name}.csv"
    heads = [PLOTS[path.stem].heads] if name.startswith("plots/") else []
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*heads, *(map(_cell, row) for row in content)])
    if path.exists() and path.read_text(encoding="utf-8") == text.getvalue():
        return False
    rewrite(path, text.getvalue())
    return True


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return "" if value is None else str(value)


def markdown(path: Path) -> str:
    """A table's file as Markdown; the first column is text, the others are numbers.

    Raises: ConfigurationError for a file that is missing, no CSV, or would break the page
    """
    if not path.is_file():
        raise ConfigurationError(f"{path}: there is no such table; restore the file, or make it from runs (--runs)")
    try:
        head, *rows = pd.read_csv(path, header=None, dtype=str, keep_default_na=False).to_numpy().tolist()
    except ValueError as wrong:
        raise ConfigurationError(f"{path}: no table: {' '.join(str(wrong).split())}") from None
    for cell in (cell for row in (head, *rows) for cell in row):
        if _BREAKS_A_TABLE.search(cell):
            raise ConfigurationError(
                f"{path}: the cell {printable(cell)!r} would break the table in the page: change it"
            )
    lines = [_line(head), "|---|" + "---:|" * (len(head) - 1), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def pages_in(folder: Path) -> tuple[str, ...]:
    """The pages with tables to fill, by name."""
    return tuple(path.stem for path in sorted(folder.glob("*.md")) if _TABLE.search(path.read_text(encoding="utf-8")))


def render(page: Path, data: Path) -> None:
    """Fill the page's tables and draw its plots from the files below ``data``. Raises: ConfigurationError"""
    text = page.read_text(encoding="utf-8")
    filled = _TABLE.sub(
        lambda found: f"<!-- table: {found[1]} -->\n\n{markdown(data / f'{found[1]}.csv')}\n\n<!-- end -->", text
    )
    for name in _PLOT.findall(text):
        if name in PLOTS:
            rewrite(page.with_name(f"{name}.svg"), PLOTS[name].svg(data / "plots" / f"{name}.csv"))
    rewrite(page, filled)
