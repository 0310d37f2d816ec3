"""Growth of a round's cost with parameters and with sites: curves on logarithmic axes, and the page's part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.bench.meter import RoundBenchmark
from harness.simulate.charts import COLOURS, drawn, tidy

DRAWN: Final = ("growth_with_parameters.svg", "growth_with_sites.svg")
_NS: Final = 1e-9
_USUAL_SITES: Final = 10
_LEAST: Final = 2
Reading = Callable[[RoundBenchmark], float]


class Drawn(Enum):
    """A panel, by what its axis says."""

    TIMES = "seconds a round"
    MEMORY = "peak resident memory, MB"

    @property
    def figures(self) -> Mapping[str, Reading]:
        return _TIMES if self is Drawn.TIMES else _MEMORY


def servers_cpu_s(one: RoundBenchmark) -> float:
    """CPU seconds of both servers in a whole round; figures are per vector, and the requester's counts."""
    cpu = one.cpu_ns_per_parameter_contributor
    return (cpu.distances + cpu.sum + cpu.ingest + cpu.output + cpu.tags) * one.parameters * (one.sites + 1) * _NS


def agent_cpu_s(one: RoundBenchmark) -> float:
    """CPU seconds of one agent in a whole round."""
    return one.agent_cpu_ns_per_parameter * one.parameters * _NS


_TIMES: Final[Mapping[str, Reading]] = {
    "the round, on one machine": lambda one: one.seconds,
    "CPU of both servers": servers_cpu_s,
    "CPU of one agent": agent_cpu_s,
}
_MEMORY: Final[Mapping[str, Reading]] = {
    "server A": lambda one: one.server_peak_rss_mb.a,
    "server B": lambda one: one.server_peak_rss_mb.b,
    "an agent without torch": lambda one: one.agent_peak_rss_mb,
}


def by_parameters(rounds: Sequence[RoundBenchmark]) -> list[RoundBenchmark]:
    """Those with the usual number of sites; none, where all have as many parameters."""
    found = [one for one in rounds if one.sites == _USUAL_SITES]
    return found if len({one.parameters for one in found}) >= _LEAST else []


def by_sites(rounds: Sequence[RoundBenchmark]) -> list[RoundBenchmark]:
    """Those that others have as many parameters as, with other numbers of sites."""
    sizes = {one.parameters for one in rounds}
    among = {size: {one.sites for one in rounds if one.parameters == size} for size in sizes}
    return [one for one in rounds if len(among[one.parameters]) >= _LEAST]


def growth_section(rounds: Sequence[RoundBenchmark]) -> str:
    """The page's part; empty where nothing can be compared."""
    lines = list(_shown(rounds))
    return "\n".join(["## Growth", "", *lines]) if lines else ""


def _shown(rounds: Sequence[RoundBenchmark]) -> Iterator[str]:
    if by_parameters(rounds):
        yield f"![Growth with the number of parameters](benchmarks/{DRAWN[0]})\n"
    if by_sites(rounds):
        yield f"![Growth with the number of sites](benchmarks/{DRAWN[1]})\n"
    if by_parameters(rounds) or by_sites(rounds):
        yield (
            "From the rounds above, on logarithmic axes. Seconds and CPU are what the machine gave on that day: the "
            "rounds were measured on different ones, under different loads (the list at the end says when and where).\n"
        )


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
