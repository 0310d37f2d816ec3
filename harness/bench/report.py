"""docs/benchmarks.md, from the JSON files that the benchmarks wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeVar

from matplotlib.figure import Figure
from pydantic import BaseModel, ValidationError

from harness.bench.ckks import CkksBenchmark
from harness.bench.latency import LatencyBenchmark
from harness.bench.load import LoadBenchmark
from harness.bench.meter import TEXTS, Benchmark, RoundBenchmark, ServerCpu, table
from harness.bench.peers import PeersBenchmark
from harness.bench.shards import ShardsBenchmark
from harness.simulate.charts import COLOURS, drawn, tidy
from protocol.errors import ConfigurationError
from protocol.parameters import WORD_BITS

DRAWN: Final = ("growth_with_parameters.svg", "growth_with_sites.svg")
_NS: Final = 1e-9
_USUAL_SITES: Final = 10
_LEAST: Final = 2
Reading = Callable[[RoundBenchmark], float]
Rounds = Sequence[RoundBenchmark]


# --- growth ---


def servers_cpu_s(one: RoundBenchmark) -> float:
    """CPU seconds of both servers in a whole round; figures are per vector, and the requester's counts."""
    cpu = one.cpu_ns_per_parameter_contributor
    return (cpu.distances + cpu.sum + cpu.ingest + cpu.output + cpu.tags) * one.parameters * (one.sites + 1) * _NS


_PANELS: Final[Mapping[str, Mapping[str, Reading]]] = {
    "seconds a round": {
        "the round, on one machine": lambda one: one.seconds,
        "CPU of both servers": servers_cpu_s,
        "CPU of one agent": lambda one: one.agent_cpu_ns_per_parameter * one.parameters * _NS,
    },
    "peak resident memory, MB": {
        "server A": lambda one: one.server_peak_rss_mb.a,
        "server B": lambda one: one.server_peak_rss_mb.b,
        "an agent without torch": lambda one: one.agent_peak_rss_mb,
    },
}
"""Curves by the words of their axis."""


def by_parameters(rounds: Rounds) -> list[RoundBenchmark]:
    """Those with the usual number of sites; none, where all have as many parameters."""
    found = [one for one in rounds if one.sites == _USUAL_SITES]
    return found if len({one.parameters for one in found}) >= _LEAST else []


def by_sites(rounds: Rounds) -> list[RoundBenchmark]:
    """Those that others have as many parameters as, with other numbers of sites."""
    sizes = {one.parameters for one in rounds}
    among = {size: {one.sites for one in rounds if one.parameters == size} for size in sizes}
    return [one for one in rounds if len(among[one.parameters]) >= _LEAST]


def _growth(rounds: Rounds) -> str:
    """Empty where nothing can be compared."""
    lines = [f"![Growth with the number of parameters](benchmarks/{DRAWN[0]})\n"] if by_parameters(rounds) else []
    lines += [f"![Growth with the number of sites](benchmarks/{DRAWN[1]})\n"] if by_sites(rounds) else []
    return "\n".join(["## Growth", "", *lines, TEXTS["growth"]]) if lines else ""


def charts_of(folder: Path) -> Mapping[str, str]:
    """The page's charts: name of the file, which belongs into ``folder``, -> SVG.

    Those alone for which there are two rounds at least that differ in it. Raises: as ``page_of``
    """
    rounds = [one for one in _usual(_read_all(folder, ROUNDS, RoundBenchmark)) if one.parameters > _TINY_PARAMETERS]
    with_parameters, with_sites = by_parameters(rounds), by_sites(rounds)
    found = {}
    if with_parameters:
        found[DRAWN[0]] = drawn(
            lambda: _figure(with_parameters, "parameters", lambda one: one.parameters, lambda one: f"{one.sites} sites")
        )
    if with_sites:
        found[DRAWN[1]] = drawn(
            lambda: _figure(with_sites, "sites", lambda one: one.sites, lambda one: f"{one.parameters:,} parameters")
        )
    return found


def _figure(rounds: Rounds, label: str, at: Reading, named: Callable[[RoundBenchmark], str]) -> Figure:
    """Seconds and CPU left, memory right; one line style for each group of rounds that differ in nothing else."""
    figure = Figure(figsize=(8.8, 3.1), layout="constrained")
    groups = [list(group) for _, group in groupby(sorted(rounds, key=lambda r: (named(r), at(r))), key=named)]
    for axes, (words, readings) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
        for style, group in zip(("-", "--", ":", "-."), groups, strict=False):
            of = f", {named(group[0])}" if len(groups) > 1 else ""
            for (name, reading), colour in zip(readings.items(), COLOURS, strict=False):
                x, y = [at(one) for one in group], [reading(one) for one in group]
                axes.plot(x, y, marker="o", markersize=3, linestyle=style, color=colour, label=f"{name}{of}")
        axes.set(xscale="log", yscale="log", ylabel=words)
        axes.set_xlabel(label if len(groups) > 1 else f"{label}, {named(groups[0][0])}")
        tidy(axes)
        axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.24), handlelength=5.0)
    return figure


# --- the page ---

R = TypeVar("R", bound=BaseModel)
ROUNDS: Final = "round_*.json"
OTHERS: Final[tuple[tuple[str, type[Benchmark]], ...]] = (
    ("peers_*.json", PeersBenchmark),
    ("ckks_*.json", CkksBenchmark),
    ("latency_*.json", LatencyBenchmark),
    ("load_*.json", LoadBenchmark),
    ("shards_*.json", ShardsBenchmark),
)
"""Files of the other benchmarks, in the order of the page."""
_MEMORY_AGAINST_SITES_MB: Final = 50.0
_MEMORY_AGAINST_PARAMETERS_MB: Final = 100.0
_TINY_PARAMETERS: Final = 1000
"""Up to here a round's cost has next to nothing to do with the number of parameters."""


def page_of(folder: Path) -> str:
    """The whole page.

    Raises: ConfigurationError, when there is no file or one of them is not a benchmark's
    """
    every = sorted(_read_all(folder, ROUNDS, RoundBenchmark), key=_size)
    usual = _usual(every)
    rounds = [one for one in usual if one.parameters > _TINY_PARAMETERS]
    tiny = [one for one in usual if one.parameters <= _TINY_PARAMETERS]
    if not rounds:
        raise ConfigurationError(f"{folder} holds no {ROUNDS}; write one: moiety lab bench round --out FILE")
    parts = [TEXTS["introduction"], _figures(rounds), _targets(rounds), _memory(rounds), _phases(rounds)]
    parts += [_growth(rounds), _fixed(tiny), _tags(rounds, every), _narrow(rounds, every)]
    everything: list[Benchmark] = [*every]
    for pattern, kind in OTHERS:
        found = _read_all(folder, pattern, kind)
        parts += [one.section() for one in found]
        everything += found
    return "\n".join([*(part for part in parts if part), _where(everything)])


def _usual(every: Rounds) -> list[RoundBenchmark]:
    return [one for one in every if not one.tags and one.ring_bits == WORD_BITS]


def _size(one: RoundBenchmark) -> tuple[int, int]:
    return one.parameters, one.sites


def _read_all(folder: Path, pattern: str, kind: type[R]) -> list[R]:
    found = []
    for path in sorted(folder.glob(pattern)):
        try:
            found.append(kind.model_validate_json(path.read_bytes()))
        except ValidationError as error:
            raise ConfigurationError(
                f"{path}: {error.error_count()} fields are not a benchmark's of this version; measure again"
            ) from None
    return found


# --- rounds ---


_FIGURES: Final[Mapping[str, Reading]] = {
    "seconds": lambda r: r.seconds,
    "up": lambda r: r.bytes_up_per_parameter,
    "down": lambda r: r.bytes_down_per_parameter,
    "MB/contributor": lambda r: r.bytes_between_servers_per_contributor / 1e6,
    "B/parameter": lambda r: r.bytes_between_servers_per_parameter,
    **{of: attrgetter(f"cpu_ns_per_parameter_contributor.{of}") for of in ServerCpu.model_fields},
    "agent": lambda r: r.agent_cpu_ns_per_parameter,
    "numpy": lambda r: r.plain_fedavg_cpu_ns_per_parameter / (r.sites + 1),
    "upload": lambda r: r.upload_gb_per_s,
}
"""Figures by their names in the tables."""
_SHOWN: Final = {
    "seconds": ".1f", "up": ".3f", "down": ".3f", "MB/contributor": ".2f", "B/parameter": ".3f", "distances": ".1f",
    "sum": ".1f", "ingest": ".1f", "output": ".1f", "agent": ".1f", "numpy": ".2f", "upload": ".2f",
}  # fmt: skip


def _rows(rounds: Rounds, cells: Callable[[RoundBenchmark], Sequence[str]]) -> list[tuple[str, ...]]:
    return [(f"{one.parameters:,}", str(one.sites), *cells(one)) for one in rounds]


def _figures(rounds: Rounds) -> str:
    rows = _rows(rounds, lambda one: [format(_FIGURES[name](one), kind) for name, kind in _SHOWN.items()])
    return "## Figures\n\n" + table(("parameters", "sites", *_SHOWN), rows) + "\n" + TEXTS["figures"]


@dataclass(frozen=True)
class _Target:
    """A limit that a figure must keep: at most, or at least."""

    what: str
    found: Reading
    limit: float
    at_least: bool = False
    only: tuple[int, int] | None = None

    def row(self, result: RoundBenchmark) -> str:
        value = self.found(result)
        reached = value >= self.limit if self.at_least else value <= self.limit
        sign = "at least" if self.at_least else "at most"
        return (
            f"| {result.parameters:,} | {result.sites} | {self.what} | {value:,.4g} | {sign} {self.limit:g} "
            f"| {_verdict(reached)} |"
        )


_MARGINAL: Final = (10**7, 10)
"""Size at which fixed costs are small beside what each parameter costs."""
_TARGETS: Final = (
    _Target("bytes up per parameter", _FIGURES["up"], 8.1),
    _Target("bytes down per parameter", _FIGURES["down"], 8.1),
    _Target("MB between the servers, a contributor", _FIGURES["MB/contributor"], 0.9),
    _Target("bytes between the servers, a parameter", _FIGURES["B/parameter"], 8.1),
    *(
        _Target(f"{what}, ns", _FIGURES[what], limit, only=_MARGINAL)
        for what, limit in (("ingest", 17.0), ("distances", 12.0), ("sum", 5.0), ("output", 8.0))
    ),
    _Target("an agent, ns", _FIGURES["agent"], 36.0, only=_MARGINAL),
    _Target("upload, GB/s", _FIGURES["upload"], 0.4, at_least=True, only=_MARGINAL),
)


def _verdict(reached: bool) -> str:
    return "reached" if reached else "**falls short**"


def _targets(rounds: Rounds) -> str:
    head = "| parameters | sites | what | found | target | |\n| ---: | ---: | --- | ---: | --- | --- |\n"
    rows = [
        target.row(one)
        for one in rounds
        for target in _TARGETS
        if (target.only or _size(one)) == _size(one) and one.parameters >= 10**6
    ]
    return "## Against the targets\n\n" + head + "\n".join(rows) + "\n"


def _memory(rounds: Rounds) -> str:
    head = ("A-peak", "A-before", "B-peak", "B-before", "agent-peak", "agent-before", "model")
    rows = _rows(rounds, lambda one: [f"{mb:.0f}" for mb in _megabytes(one)])
    return "## Memory, MB\n\n" + table(("parameters", "sites", *head), rows) + "\n" + _larger(rounds)


def _megabytes(one: RoundBenchmark) -> tuple[float, ...]:
    peak, idle = one.server_peak_rss_mb, one.server_idle_rss_mb
    return peak.a, idle.a, peak.b, idle.b, one.agent_peak_rss_mb, one.agent_idle_rss_mb, 4 * one.parameters / 1e6


def _larger(rounds: Rounds) -> str:
    """More sites, and more parameters, against (10^6, 10)."""
    by = {_size(one): one.server_peak_rss_mb for one in rounds}
    base, lines = by.get((10**6, 10)), []
    for size, limit in (((10**6, 40), _MEMORY_AGAINST_SITES_MB), ((10**7, 10), _MEMORY_AGAINST_PARAMETERS_MB)):
        if base is not None and size in by:
            grown = max(by[size].a - base.a, by[size].b - base.b)
            lines.append(
                f"- A server's peak at {size[0]:,} parameters and {size[1]} sites is {grown:.0f} MB above that at "
                f"1,000,000 and 10 (target: at most {limit:g}): {_verdict(grown <= limit)}."
            )
    return "\n".join(lines) + "\n"


def _phases(rounds: Rounds) -> str:
    names = tuple(dict.fromkeys(name for one in rounds for name in one.seconds_by_phase))
    rows = _rows(rounds, lambda one: [f"{one.seconds_by_phase.get(name, float('nan')):.2f}" for name in names])
    return "## Seconds by phase\n\n" + table(("parameters", "sites", *names), rows)


_FIXED: Final = (
    ("ingest, both servers", "ingest", 6.0),
    ("output, both servers", "output", 3.0),
    ("agent", "agent", 6.0),
)


def _fixed(tiny: Rounds) -> str:
    """Milliseconds of CPU that a contributor costs whatever the model's size."""
    rows = []
    for one in tiny:
        for what, figure, limit_ms in _FIXED:
            cost_ms = _FIGURES[figure](one) * one.parameters / 1e6
            found = (f"{cost_ms:.1f}", f"at most {limit_ms:g}", _verdict(cost_ms <= limit_ms))
            rows.append((f"{one.parameters:,}", str(one.sites), what, *found))
    head = ("parameters", "sites", "CPU per contributor and round, ms", "found", "target", "")
    return "## Whatever the model's size\n\n" + table(head, rows) if rows else ""


def _beside(
    rounds: Rounds,
    others: Rounds,
    label: str,
    named: Callable[[RoundBenchmark], str],
    columns: Sequence[str],
    kind: str,
) -> str:
    """Each of ``others`` over the usual round of the same size, where one was measured."""
    usual, rows = {_size(one): one for one in rounds}, []
    for one in others:
        for name, of in ((named(one), one), (named(rounds[0]), usual.get(_size(one)))):
            figures = ["-"] * len(columns) if of is None else [format(_FIGURES[column](of), kind) for column in columns]
            rows.append((f"{one.parameters:,}", str(one.sites), name, *figures))
    return table(("parameters", "sites", label, *columns), rows)


def _tags(rounds: Rounds, every: Rounds) -> str:
    tagged = [one for one in every if one.tags]
    columns = ("up", "down", "B/parameter", "sum", "tags", "agent", "seconds")
    shown = _beside(rounds, tagged, "tags", lambda one: "with" if one.tags else "without", columns, ".3f")
    return f"## With tags\n\n{shown}\n{TEXTS['tags']}" if tagged else ""


def _narrow(rounds: Rounds, every: Rounds) -> str:
    narrow = [one for one in every if one.ring_bits != WORD_BITS]
    columns = ("up", "down", "B/parameter", "ingest", "distances", "sum", "output", "agent", "seconds")
    shown = _beside(rounds, narrow, "ring, bits", lambda one: str(one.ring_bits), columns, ".2f")
    return f"## In a ring of 48 bits\n\n{shown}\n{TEXTS['ring_48']}" if narrow else ""


def _where(everything: Sequence[Benchmark]) -> str:
    lines = [f"- `{one.command}`: {one.date}, {one.machine}" for one in everything]
    kept = dict.fromkeys(", ".join(f"{k} {v}" for k, v in one.versions.items()) for one in everything)
    return "## Commands, dates, machine, versions\n\n" + "\n".join(lines) + "\n\n" + "\n\n".join(kept) + "\n"
