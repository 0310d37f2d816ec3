"""Which rounds are compared, and which of their figures are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

from harness.bench.results import RoundBenchmark

DRAWN: Final = ("growth_with_parameters.svg", "growth_with_sites.svg")
_NS: Final = 1e-9
_USUAL_SITES: Final = 10
_LEAST: Final = 2
Figure = Callable[[RoundBenchmark], float]


class Drawn(Enum):
    """A panel, by what its axis says."""

    TIMES = "seconds a round"
    MEMORY = "peak resident memory, MB"

    @property
    def figures(self) -> Mapping[str, Figure]:
        return _TIMES if self is Drawn.TIMES else _MEMORY


def servers_cpu_s(one: RoundBenchmark) -> float:
    """Of both servers, in a whole round: figures are per parameter and vector, and the requester's counts."""
    cpu = one.cpu_ns_per_parameter_contributor
    return (cpu.distances + cpu.sum + cpu.ingest + cpu.output + cpu.tags) * one.parameters * (one.sites + 1) * _NS


def agent_cpu_s(one: RoundBenchmark) -> float:
    """Of one agent, in a whole round."""
    return one.agent_cpu_ns_per_parameter * one.parameters * _NS


_TIMES: Final[Mapping[str, Figure]] = {
    "the round, on one machine": lambda one: one.seconds,
    "CPU of both servers": servers_cpu_s,
    "CPU of one agent": agent_cpu_s,
}
_MEMORY: Final[Mapping[str, Figure]] = {
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
    lines = list(_lines(rounds))
    return "\n".join(["## Growth", "", *lines]) if lines else ""


def _lines(rounds: Sequence[RoundBenchmark]) -> Iterator[str]:
    if by_parameters(rounds):
        yield f"![Growth with the number of parameters](benchmarks/{DRAWN[0]})\n"
    if by_sites(rounds):
        yield f"![Growth with the number of sites](benchmarks/{DRAWN[1]})\n"
    if by_parameters(rounds) or by_sites(rounds):
        yield (
            "From the rounds above, on logarithmic axes. Seconds and CPU are what the machine gave on that day: the "
            "rounds were measured on different ones, under different loads (the list at the end says when and where).\n"
        )
