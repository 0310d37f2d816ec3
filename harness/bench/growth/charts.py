"""Curves on logarithmic axes: rounds that differ in one thing alone, parameters or sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.bench.growth.figures import DRAWN, Drawn, by_parameters, by_sites
from harness.bench.results import RoundBenchmark
from harness.simulate.charts import COLOURS, drawn, tidy

_ACROSS: Final = 2
_SIZE: Final = (8.8, 3.1)


def growth_charts(rounds: Sequence[RoundBenchmark]) -> Mapping[str, str]:
    """Name of the file -> SVG; those alone for which there are two rounds at least that differ in it."""
    with_parameters, with_sites = by_parameters(rounds), by_sites(rounds)
    found = {}
    if with_parameters:
        found[DRAWN[0]] = drawn(lambda: _figure(with_parameters, "parameters", lambda r: r.parameters, _of_sites))
    if with_sites:
        found[DRAWN[1]] = drawn(lambda: _figure(with_sites, "sites", lambda r: r.sites, _of_parameters))
    return found


def _of_sites(one: RoundBenchmark) -> str:
    return f"{one.sites} sites"


def _of_parameters(one: RoundBenchmark) -> str:
    return f"{one.parameters:,} parameters"


def _figure(
    rounds: Sequence[RoundBenchmark],
    label: str,
    at: Callable[[RoundBenchmark], float],
    named: Callable[[RoundBenchmark], str],
) -> Figure:
    """Seconds and CPU left, memory right; one line style for each group of rounds that differ in nothing else."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    for axes, panel in zip(figure.subplots(1, _ACROSS), (Drawn.TIMES, Drawn.MEMORY), strict=True):
        groups = [list(group) for _, group in groupby(sorted(rounds, key=lambda r: (named(r), at(r))), key=named)]
        for style, group in zip(("-", "--", ":", "-."), groups, strict=False):
            _lines(axes, panel, group, at, f", {named(group[0])}" if len(groups) > 1 else "", style)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(label if len(groups) > 1 else f"{label}, {named(groups[0][0])}")
        axes.set_ylabel(panel.value)
        tidy(axes)
        axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.24), handlelength=5.0)
    return figure


def _lines(
    axes: Axes,
    panel: Drawn,
    group: Sequence[RoundBenchmark],
    at: Callable[[RoundBenchmark], float],
    of: str,
    style: str,
) -> None:
    places = [at(one) for one in group]
    for (name, figure), colour in zip(panel.figures.items(), COLOURS, strict=False):
        values = [figure(one) for one in group]
        axes.plot(places, values, marker="o", markersize=3, linestyle=style, color=colour, label=f"{name}{of}")
