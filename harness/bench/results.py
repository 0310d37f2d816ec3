"""What a benchmark found, as its JSON file holds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from host.placed_files import rewrite
from protocol.parameters import WORD_BITS, RingBits


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Spread(_Result):
    """The median of the repeats, and their quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = np.quantile(np.asarray(values, dtype=np.float64), (0.25, 0.5, 0.75))
        return cls(median=float(median), low=float(low), high=float(high))


class ServerCpu(_Result):
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


class BothServers(_Result):
    """One figure for each server."""

    a: float
    b: float


class RoundBenchmark(_Result):
    """One whole round. Every figure is explained in docs/benchmarks.md."""

    parameters: int
    sites: int
    tags: bool = False
    ring_bits: RingBits = WORD_BITS
    command: str
    date: str
    machine: str
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
    versions: dict[str, str]


class WholeRounds(_Result):
    """Whole rounds of one system over real processes; of a system that did not run, ``error`` says why.

    CPU seconds are of all processes of either group, per round. Bytes are per parameter and client, at the clients'
    sockets, and between the servers where there are two. Memory is the largest sum of resident sets.
    """

    name: str
    version: str | None
    how: str
    protected: str
    error: str | None = None
    rounds: int = 0
    seconds: float | None = None
    server_cpu_s: float | None = None
    client_cpu_s: float | None = None
    bytes_up_per_parameter: float | None = None
    bytes_down_per_parameter: float | None = None
    bytes_between_servers_per_parameter: float | None = None
    server_peak_mb: float | None = None
    client_peak_mb: float | None = None


class PeersBenchmark(_Result):
    """Whole rounds of several systems in one sitting."""

    parameters: int
    sites: int
    command: str
    date: str
    machine: str
    rounds: tuple[WholeRounds, ...]
    versions: dict[str, str]


def write_result(result: BaseModel, path: Path) -> None:
    """The JSON file that ``moiety bench report`` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rewrite(path, result.model_dump_json(indent=2) + "\n")
