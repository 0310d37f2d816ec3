"""What ``moiety bench ckks`` found, as its JSON file holds it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from harness.bench.results import RoundBenchmark


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CkksTimes(_Result):
    """CPU nanoseconds of all processes, a parameter.

    ``encrypt``: from the update to the body, at one site. ``check``: parsing one contribution as it comes, at the
    server; ``add``: parsing and adding one, when the round is summed. ``decrypt``: from the sum to the average.
    """

    encrypt: float
    check: float
    add: float
    decrypt: float


class CkksFigures(_Result):
    """One choice of ring and moduli on the benchmark's vectors.

    Bytes are of the sealed bodies, a parameter and site. ``peak_rss_mb`` is of the larger process, ``worker_rss_mb``
    of the one that parses. Errors are of the opened average, in units of the clip norm: ``max_error`` of the worst
    coordinate, ``norm_error`` of the whole vector.
    """

    scheme: str
    ring_degree: int
    modulus_bits: tuple[int, ...]
    scale_bits: int
    bytes_up_per_parameter: float
    bytes_down_per_parameter: float
    ns_per_parameter: CkksTimes
    peak_rss_mb: float
    worker_rss_mb: float | None
    max_error: float
    norm_error: float


class CkksBenchmark(CkksFigures):
    """Ours, the common parameters through TenSEAL's vectors, and a round of the share path, in one run."""

    parameters: int
    sites: int
    command: str
    date: str
    machine: str
    common: CkksFigures
    shares: RoundBenchmark
    versions: dict[str, str]
