"""What ``moiety bench shards`` found, as its JSON file holds it, and its section of docs/benchmarks.md."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pass(_Result):
    """One pass: seconds from its begin to its end, and CPU seconds of all workers, of the busiest, of the server.

    ``server_cpu_seconds`` is the reduce: what the server itself does to put ranges together, which no worker takes off
    it.
    """

    seconds: float
    workers_cpu_seconds: float
    busiest_worker_cpu_seconds: float
    server_cpu_seconds: float
    bytes_read: int
    ranges: int


class ByWorkers(_Result):
    """Both passes with so many workers; 0: the server's own process, without Ray."""

    workers: int
    sketch: Pass
    sum: Pass
    worker_peak_rss_mb: float


class ShardsBenchmark(_Result):
    """One side's passes over the same stored shares, by number of workers; all gave the same bits."""

    parameters: int
    shares: int
    range_parameters: int
    command: str
    date: str
    machine: str
    load: float
    stored_bytes: int
    runs: tuple[ByWorkers, ...]
    versions: dict[str, str]


_WHAT = (
    "One side's linear passes over stored, encrypted shares (every second one a seed, as in a roster), cut into ranges "
    "that tasks of a Ray cluster of this machine do; 0 workers is the server's own process, without Ray. The results "
    "are compared bit by bit. A worker's CPU is counted in the task; `server` is what the server does itself to put "
    "ranges together: taking pads off and adding up parts of sketches, reading and hashing the masked sum once. "
    "Starting Ray and its workers is not in it. Seconds are those of a machine as busy as its load says.\n"
)


def shards_section(result: ShardsBenchmark) -> str:
    """One run of ``moiety bench shards``."""
    n = result.parameters * result.shares
    head = (
        "| workers | pass | seconds | CPU s, workers | of the busiest | its part | CPU s, server "
        "| ns per parameter and share | GB read | MB, a worker |\n| ---: | --- |" + " ---: |" * 8 + "\n"
    )
    rows = "".join(
        f"| {run.workers} | {name} | {one.seconds:.1f} | {one.workers_cpu_seconds:.2f} "
        f"| {one.busiest_worker_cpu_seconds:.2f} | {_part(one)} | {one.server_cpu_seconds:.3f} "
        f"| {one.workers_cpu_seconds / n * 1e9:.1f} | {one.bytes_read / 1e9:.2f} | {run.worker_peak_rss_mb:.0f} |\n"
        for run in result.runs
        for name, one in (("sketch", run.sketch), ("sum", run.sum))
    )
    title = f"## Passes by ranges: {result.parameters:,} parameters, {result.shares} shares"
    return f"{title}\n\n{_WHAT}\nLoad before it began: {result.load:.1f}.\n\n{head}{rows}\n{_larger(result)}"


def _part(one: Pass) -> str:
    return f"{one.busiest_worker_cpu_seconds / one.workers_cpu_seconds:.2f}"


def _larger(result: ShardsBenchmark) -> str:
    """The same per parameter, ten times as many: no measurement."""
    of = min(result.runs, key=lambda run: run.sketch.workers_cpu_seconds + run.sum.workers_cpu_seconds)
    more = 10
    return (
        f"Extrapolated, not measured: {more * result.parameters:,} parameters of {result.shares} shares take "
        f"{more * of.sketch.workers_cpu_seconds:.0f} CPU seconds of sketches and "
        f"{more * of.sum.workers_cpu_seconds:.0f} of sums, divided by the workers, "
        f"{more * (of.sketch.server_cpu_seconds + of.sum.server_cpu_seconds):.0f} of the server's own, and "
        f"{more * result.stored_bytes / 1e9:.0f} GB of stored shares.\n"
    )
