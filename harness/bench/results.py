"""Shared by all benchmarks: a result as its JSON file, the facts of a run, a scratch folder, tables.

The result of a whole round is here, since other benchmarks and the page read it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from harness.bench import meter
from harness.versions import versions
from host.output_files import rewrite
from protocol.parameters import WORD_BITS, RingBits


class Figures(BaseModel):
    """A part of a result; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Benchmark(Figures):
    """One run of a benchmark: the command that repeats it, when, where and with which versions."""

    command: str
    date: str
    machine: str
    versions: dict[str, str]


class Spread(Figures):
    """The median of the repeats, and their quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = np.quantile(np.asarray(values, dtype=np.float64), (0.25, 0.5, 0.75))
        return cls(median=float(median), low=float(low), high=float(high))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


class ServerCpu(Figures):
    """CPU nanoseconds of both servers together, per parameter and contributor.

    ``distances``: from the lock to the sealed opening, and the correlations by OT for one round. ``sum``: from the
    release set to the stored output. ``ingest``: taking in and storing the shares. ``output``: serving the sum.
    ``tags``: from the seed of the tags to the release, where the round has tags.
    """

    distances: float
    sum: float
    ingest: float
    output: float
    tags: float = 0.0


class BothServers(Figures):
    """One figure for each server."""

    a: float
    b: float


class RoundBenchmark(Benchmark):
    """One whole round. Every figure is explained in docs/benchmarks.md."""

    parameters: int
    sites: int
    tags: bool = False
    ring_bits: RingBits = WORD_BITS
    seconds: float
    seconds_by_phase: dict[str, float]
    bytes_up_per_parameter: float
    bytes_down_per_parameter: float
    bytes_between_servers_per_contributor: float
    bytes_between_servers_per_parameter: float
    server_peak_rss_mb: BothServers
    server_idle_rss_mb: BothServers
    agent_peak_rss_mb: float
    agent_idle_rss_mb: float
    cpu_ns_per_parameter_contributor: ServerCpu
    agent_cpu_ns_per_parameter: float
    plain_fedavg_cpu_ns_per_parameter: float
    upload_gb_per_s: float
    max_abs_difference_to_plain: float


def facts(command: str) -> dict[str, Any]:
    """The fields of :class:`Benchmark`, for a run that ends now."""
    return {
        "command": f"moiety bench {command}",
        "date": datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": meter.machine(),
        "versions": {one.name: one.version for one in versions()},
    }


def write_result(result: Benchmark, path: Path) -> None:
    """Write the JSON file that ``moiety bench report`` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rewrite(path, result.model_dump_json(indent=2) + "\n")


@contextmanager
def scratch(folder: Path | None = None) -> Iterator[Path]:
    """A folder of its own, inside of ``folder`` where one is named; removed in the end."""
    with tempfile.TemporaryDirectory(prefix="moiety-bench-", dir=folder) as name:
        yield Path(name)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 0) -> str:
    """A table in Markdown: the first ``texts`` columns are words, the others numbers."""
    rule = "|" + " --- |" * texts + " ---: |" * (len(head) - texts)
    return "".join(f"{line}\n" for line in (_row(head), rule, *map(_row, rows)))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
