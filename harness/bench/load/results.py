"""What ``moiety bench load`` came to, as its JSON file holds it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from harness.bench.load.calls import CallTimes
from harness.bench.load.samples import Sample


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LoadBenchmark(_Result):
    """Many sites in one study. CPU and memory are the servers' unless they say whose.

    CPU and growth are counted from the end of the first round on. ``errors``: failed calls by kind, complaints of
    agents, rounds without a sum. ``refusals``: requests that servers refused, by code, whether or not that is how it
    should be.
    """

    parameters: int
    sites: int
    rounds: int
    processes: int
    command: str
    date: str
    machine: str
    machine_load: float
    released: int
    errors: dict[str, int]
    refusals: dict[str, int]
    seconds: float
    round_seconds: tuple[float, ...]
    calls: tuple[CallTimes, ...]
    server_cpu_ms_per_site_round: float
    agent_cpu_ms_per_site_round: float
    server_idle_mb: float
    server_peak_mb: float
    server_mb_per_site: float
    open_files_most: int
    database_bytes_per_site_round: float
    file_bytes_at_end: int
    samples: tuple[Sample, ...]
    rows: dict[str, int]
    versions: dict[str, str]


class Slope(_Result):
    """A straight line through what was measured after every round; ``per_round`` is its slope.

    ``first`` and ``last``: medians of the first and the last tenth of the rounds that count.
    """

    what: str
    unit: str
    per_round: float
    first: float
    last: float
