"""The page's part about whole rounds of other systems, and the same in lines for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from harness.bench.results import PeersBenchmark, WholeRounds

_COLUMNS: Final[tuple[tuple[str, Callable[[WholeRounds], float | None], str], ...]] = (
    ("servers, CPU s", lambda one: one.server_cpu_s, ".2f"),
    ("clients, CPU s", lambda one: one.client_cpu_s, ".2f"),
    ("rounds", lambda one: one.rounds, "d"),
    ("seconds", lambda one: one.seconds, ".1f"),
    ("up", lambda one: one.bytes_up_per_parameter, ".2f"),
    ("down", lambda one: one.bytes_down_per_parameter, ".2f"),
    ("between", lambda one: one.bytes_between_servers_per_parameter, ".2f"),
    ("servers, MB", lambda one: one.server_peak_mb, ",.0f"),
    ("clients, MB", lambda one: one.client_peak_mb, ",.0f"),
)
_LEGEND: Final = (
    "Per round, after one that warms up: from the moment at which a round begins to that at which the next one does. "
    "CPU is what Linux counts for all processes of either group, those included that began and ended in between; "
    "Moiety's clients are one more than the others', as the requester contributes too. `up`, `down`: bytes per "
    "parameter and client at the clients' sockets, TLS included where there is TLS; `between`: between two servers. "
    "MB: the largest sum of resident sets; what processes share counts in each. Nobody trains: clients of Flower and "
    "NVFlare add a constant, and the average is checked; Moiety's take a gradient on one example with torch, which is "
    "in their memory and CPU. Every system polls in its own rhythm, which is most of its `seconds`.\n"
)


def whole_rounds_part(*results: PeersBenchmark) -> str:
    """A table and what protects whom, of sittings of one size; nothing where whole rounds were left out.

    A system that failed in one sitting and was measured in another is measured.
    """
    rounds = [one for result in results for one in result.rounds]
    if not rounds:
        return ""
    head = ("whole rounds of", "version", *(name for name, _, _ in _COLUMNS))
    measured = [one for one in rounds if one.error is None]
    known = {one.name for one in measured}
    lines = ["| " + " | ".join(head) + " |", "| --- | --- |" + " ---: |" * len(_COLUMNS)]
    lines += ["| " + " | ".join((one.name, one.version or "-", *_cells(one))) + " |" for one in measured]
    failed = [
        f"- {one.name}: not measured: {one.error}" for one in rounds if one.error is not None and one.name not in known
    ]
    said = [f"- {one.name}: {one.how}. Protected: {one.protected}." for one in measured]
    title = f"## Whole rounds of other systems: {results[0].parameters:,} parameters, {results[0].sites} clients"
    return "\n".join([title, "", *lines, "", _LEGEND, *_sittings(results), *said, *failed, ""])


def _sittings(results: Sequence[PeersBenchmark]) -> list[str]:
    """Figures of several sittings must not be read as if they were of one."""
    found = [(one.date, [each.name for each in one.rounds if each.error is None]) for one in results]
    found = [(date, names) for date, names in found if names]
    if len(found) <= 1:
        return []
    each = "; ".join(f"{date}: {', '.join(names)}" for date, names in found)
    return [f"CPU and seconds of different sittings are of machines under different loads. {each}.\n"]


def whole_rounds_lines(rounds: Sequence[WholeRounds]) -> list[str]:
    """One line a system."""
    return [f"whole rounds: {one.name}: {one.error or _figures(one)}" for one in rounds]


def _figures(one: WholeRounds) -> str:
    return ", ".join(f"{name} {cell}" for (name, _, _), cell in zip(_COLUMNS, _cells(one), strict=True))


def _cells(one: WholeRounds) -> list[str]:
    found = [(of(one), kind) for _, of, kind in _COLUMNS]
    return ["-" if value is None else format(value, kind) for value, kind in found]
