"""``moiety bench load``: many sites' agents in a few processes, held for the rounds of one study."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from harness.bench import probe
from harness.bench.load.agents import Played
from harness.bench.load.calls import CallTimes, call_times
from harness.bench.load.held import Held, Rounds, held_federation, held_study, hold
from harness.bench.load.results import LoadBenchmark, Slope
from harness.bench.load.samples import Sample
from harness.versions import versions
from harness.warm import warm

_ENOUGH_ROUNDS: Final = 20
"""For straight lines through what was measured after each."""
_SETTLED: Final = 0.2
"""Of the rounds: in the first ones kernels are loaded, pools are filled, and what has an age has not come to it."""
_NONCES_S: Final = 660.0
"""Nonces of requests are kept for so long; before, the databases grow by them too."""
_END: Final = 0.1
_KILOBYTE: Final = 1e3
FIGURES: Final[tuple[tuple[str, str, Callable[[Sample], float]], ...]] = (
    ("a server's memory", "MB", lambda s: s.resident_mb),
    ("all agents' memory", "MB", lambda s: s.agents_resident_mb),
    ("a server's open files", "files", lambda s: s.open_files),
    ("both databases", "kB", lambda s: s.database_bytes / _KILOBYTE),
    ("both servers' other files", "kB", lambda s: s.file_bytes / _KILOBYTE),
    ("both servers' log lines", "kB", lambda s: s.process_log_bytes / _KILOBYTE),
    ("all agents' files", "kB", lambda s: s.agents_bytes / _KILOBYTE),
)


def benchmark_load(
    dimension: int, sites: int, rounds: int, processes: int, tell: Callable[[str], None], folder: Path | None = None
) -> LoadBenchmark:
    """Start everything, hold it for so many rounds, stop everything.

    Raises: Unavailable, when a process ends or no round does
    """
    warm()
    with (
        tempfile.TemporaryDirectory(prefix="moiety-bench-", dir=folder) as name,
        held_federation(Path(name), sites, processes) as held,
    ):
        probe.wait_until_idle(held.servers.pids)
        idle_mb = max(map(probe.resident_mb, held.servers.pids))
        done = hold(held, held_study(held.servers, dimension, rounds), tell)
        peak_mb, load = max(map(probe.peak_mb, held.servers.pids)), os.getloadavg()[1]
        seen = _Seen(held.sampler.rows(), held.sampler.refusals(), held.played(), internal_errors(held))
    command = f"moiety bench load --sites {sites} --parameters {dimension} --rounds {rounds} --processes {processes}"
    return LoadBenchmark(
        parameters=dimension,
        sites=sites,
        rounds=rounds,
        processes=processes,
        command=command,
        date=datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=probe.machine(),
        machine_load=load,
        server_idle_mb=idle_mb,
        server_peak_mb=peak_mb,
        server_mb_per_site=(peak_mb - idle_mb) / sites,
        versions={one.name: one.version for one in versions()},
        **_figures(done, seen, sites),
    )


@dataclass(frozen=True)
class _Seen:
    """What was read of a federation before it was stopped."""

    rows: dict[str, int]
    refusals: dict[str, int]
    played: Sequence[Played]
    internal: int


def _figures(done: Rounds, seen: _Seen, sites: int) -> dict[str, Any]:
    """Of all rounds but the first, per site and round, where there are enough."""
    settled = 1 if len(done.samples) > 2 else 0  # in the first round sites greet, connect and read the study
    first, last = done.samples[settled], done.samples[-1]
    site_rounds = sites * max(1, last.round - first.round)
    return {
        "released": done.released,
        "errors": found_errors(done, seen.played, seen.internal),
        "refusals": seen.refusals,
        "seconds": last.seconds,
        "round_seconds": tuple(round(b.seconds - a.seconds, 3) for a, b in pairwise(done.samples)),
        "calls": called(seen.played),
        "server_cpu_ms_per_site_round": (last.cpu_ns - first.cpu_ns) / 1e6 / site_rounds,
        "agent_cpu_ms_per_site_round": (last.agents_cpu_ns - first.agents_cpu_ns) / 1e6 / site_rounds,
        "open_files_most": max(sample.open_files for sample in done.samples),
        "database_bytes_per_site_round": (last.database_bytes - first.database_bytes) / site_rounds,
        "file_bytes_at_end": last.file_bytes,
        "samples": done.samples,
        "rows": seen.rows,
    }


def called(played: Sequence[Played]) -> tuple[CallTimes, ...]:
    """Every kind of call of all processes together."""
    together: dict[str, list[float]] = {}
    for one in played:
        for purpose, taken in one.milliseconds.items():
            together.setdefault(purpose, []).extend(taken)
    return call_times(together)


def found_errors(done: Rounds, played: Sequence[Played], internal: int) -> dict[str, int]:
    """Failed calls, complaints, rounds without a sum, and what servers logged as their own error."""
    found: Counter[str] = Counter()
    for one in played:
        found.update(one.failed)
        found.update(problem.partition(": ")[2] or problem for problem in one.problems)
    found["rounds without a sum"] = len(done.records) - done.released
    found["internal errors of servers"] = internal
    return {what: count for what, count in found.items() if count}


def internal_errors(held: Held) -> int:
    """Of both servers, as their logs have them."""
    logs = [running.log.read_text(encoding="utf-8", errors="replace") for running in held.servers.running.values()]
    return sum(log.count("internal error") for log in logs)


def slopes(samples: Sequence[Sample]) -> tuple[Slope, ...]:
    """Of every figure, over the rounds after the first fifth, and after nonces have come to their age where the study
    takes twice as long; the last sample is after the study's end.
    """
    last = samples[-1]
    begins_s = _NONCES_S if last.seconds > 2 * _NONCES_S else 0.0
    counted = [one for one in samples if one.round > _SETTLED * last.round and one.seconds > begins_s]
    counted = counted[:-1] if len(counted) > 2 else counted
    found = [
        _slope(what, unit, [s.round for s in counted], [float(of(s)) for s in counted]) for what, unit, of in FIGURES
    ]
    steps = [(b, (b.seconds - a.seconds) / max(1, b.round - a.round)) for a, b in pairwise(counted)]
    found.append(_slope("a round's time", "s", [b.round for b, _ in steps], [seconds for _, seconds in steps]))
    cpu = [(b, (b.cpu_ns - a.cpu_ns) / 1e6 / max(1, b.round - a.round)) for a, b in pairwise(counted)]
    found.append(_slope("both servers' CPU a round", "ms", [b.round for b, _ in cpu], [ms for _, ms in cpu]))
    return tuple(found)


def _slope(what: str, unit: str, rounds: Sequence[int], values: Sequence[float]) -> Slope:
    """Least squares; medians of both ends."""
    some = max(1, round(_END * len(values)))
    straight = np.polyfit(rounds, values, 1) if len(set(rounds)) > 1 else np.zeros(2)
    return Slope(
        what=what,
        unit=unit,
        per_round=float(straight[0]),
        first=float(median(values[:some])),
        last=float(median(values[-some:])),
    )


def load_text(result: LoadBenchmark) -> str:
    """The figures, one a line."""
    grown = slopes(result.samples) if result.rounds >= _ENOUGH_ROUNDS else ()
    return "\n".join([*load_lines(result), *map(_call_line, result.calls), *map(_slope_line, grown)])


def load_lines(result: LoadBenchmark) -> tuple[str, ...]:
    """All but the times of calls."""
    errors = ", ".join(f"{count} x {what}" for what, count in result.errors.items()) or "none"
    refused = ", ".join(f"{count} x {code}" for code, count in result.refusals.items()) or "none"
    per_round = sorted(result.round_seconds)
    return (
        f"{result.sites} sites in {result.processes} processes, {result.parameters:,} parameters, "
        f"{result.released} of {result.rounds} rounds released in {result.seconds:.0f} s "
        f"(median round {per_round[len(per_round) // 2]:.1f} s), load of the machine {result.machine_load:.1f}",
        f"errors: {errors}",
        f"refused by the servers: {refused}",
        f"both servers' CPU, a site and round: {result.server_cpu_ms_per_site_round:.1f} ms; "
        f"an agent's: {result.agent_cpu_ms_per_site_round:.1f} ms",
        f"a server's memory: {result.server_idle_mb:.0f} MB idle, {result.server_peak_mb:.0f} MB at most, "
        f"{result.server_mb_per_site:.2f} MB a site, with what any study needs; open files: {result.open_files_most}",
        f"databases grow by {result.database_bytes_per_site_round:,.0f} bytes a site and round; "
        f"other files at the end: {result.file_bytes_at_end / 1e6:.1f} MB",
    )


def _call_line(call: CallTimes) -> str:
    waits = " (waits for news)" if call.waits_for_news else ""
    return (
        f"{call.purpose}{waits}: {call.count} calls, p50 {call.p50_ms:.0f}, p95 {call.p95_ms:.0f}, "
        f"p99 {call.p99_ms:.0f}, most {call.most_ms:.0f} ms"
    )


def _slope_line(one: Slope) -> str:
    return (
        f"{one.what}: {one.first:,.4g} {one.unit} at first, {one.last:,.4g} in the end, "
        f"{one.per_round:+,.4g} {one.unit} a round"
    )
