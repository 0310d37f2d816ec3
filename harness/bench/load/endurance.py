"""``moiety bench endurance``: one small study of many rounds, and whether anything grows with them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from harness.bench import probe
from harness.bench.load.held import Rounds, held_federation, held_study, hold
from harness.bench.load.results import EnduranceBenchmark, Slope
from harness.bench.load.run import found_errors, internal_errors
from harness.bench.load.samples import Sample
from harness.versions import versions
from harness.warm import warm

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


def benchmark_endurance(
    dimension: int, sites: int, rounds: int, within_s: float, tell: Callable[[str], None], folder: Path | None = None
) -> EnduranceBenchmark:
    """So many rounds, or those that end within a time. Raises: Unavailable, when a process ends or no round does"""
    warm()
    with (
        tempfile.TemporaryDirectory(prefix="moiety-bench-", dir=folder) as name,
        held_federation(Path(name), sites, 1) as held,
    ):
        done = hold(held, held_study(held.servers, dimension, rounds), tell, within_s)
        load, rows = os.getloadavg()[1], held.sampler.rows()
        errors = found_errors(done, held.played(), internal_errors(held))
    return EnduranceBenchmark(
        parameters=dimension,
        sites=sites,
        rounds=rounds,
        command=f"moiety bench endurance --sites {sites} --parameters {dimension} --rounds {rounds}",
        date=datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=probe.machine(),
        machine_load=load,
        released=done.released,
        errors=errors,
        seconds=done.samples[-1].seconds,
        slopes=slopes(done),
        samples=done.samples,
        rows=rows,
        versions={one.name: one.version for one in versions()},
    )


def slopes(done: Rounds) -> tuple[Slope, ...]:
    """Of every figure, over the rounds after the first fifth, and after nonces have come to their age where the study
    takes twice as long; the last sample is after the study's end.
    """
    last = done.samples[-1]
    begins_s = _NONCES_S if last.seconds > 2 * _NONCES_S else 0.0
    counted = [one for one in done.samples if one.round > _SETTLED * last.round and one.seconds > begins_s]
    counted = counted[:-1] if len(counted) > 2 else counted
    found = [
        _slope(what, unit, [s.round for s in counted], [float(of(s)) for s in counted]) for what, unit, of in FIGURES
    ]
    steps = [(b, (b.seconds - a.seconds) / max(1, b.round - a.round)) for a, b in pairwise(counted)]
    found.append(_slope("a round's time", "s", [b.round for b, _ in steps], [seconds for _, seconds in steps]))
    cpu = [(b, (b.cpu_ns - a.cpu_ns) / 1e6 / max(1, b.round - a.round)) for a, b in pairwise(counted)]
    found.append(_slope("both servers' CPU a round", "ms", [b.round for b, _ in cpu], [ms for _, ms in cpu]))
    return tuple(found)


def endurance_text(result: EnduranceBenchmark) -> str:
    """The figures, one a line."""
    errors = ", ".join(f"{count} x {what}" for what, count in result.errors.items()) or "none"
    lines = [
        f"{result.sites} sites, {result.parameters} parameters, {result.released} of {result.rounds} rounds released "
        f"in {result.seconds:.0f} s, load of the machine {result.machine_load:.1f}",
        f"errors: {errors}",
        *(
            f"{one.what}: {one.first:,.4g} {one.unit} at first, {one.last:,.4g} in the end, "
            f"{one.per_round:+,.4g} {one.unit} a round"
            for one in result.slopes
        ),
        "rows in both databases: " + ", ".join(f"{table} {count}" for table, count in result.rows.items()),
    ]
    return "\n".join(lines)


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
