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

    Bytes are of the sealed bodies per parameter and site. ``peak_rss_mb`` is of the larger process, ``worker_rss_mb``
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
    """Our path and a round of the share path, in one run."""

    parameters: int
    sites: int
    command: str
    date: str
    machine: str
    shares: RoundBenchmark
    versions: dict[str, str]


def ckks_text(result: CkksBenchmark) -> str:
    """The figures of both, a line each."""
    shares, ns = result.shares, result.ns_per_parameter
    lines = [
        f"{result.parameters:,} parameters, {result.sites} contributors and the requester, {result.machine}",
        f"{result.scheme}, {result.ring_degree} / {list(result.modulus_bits)}, scale 2^{result.scale_bits}: "
        f"bytes per parameter up {result.bytes_up_per_parameter:.2f}, down {result.bytes_down_per_parameter:.2f}; "
        "CPU ns per parameter: "
        f"encrypt {ns.encrypt:.0f}, check {ns.check:.0f}, add {ns.add:.0f}, decrypt {ns.decrypt:.0f}; "
        f"peak {result.peak_rss_mb:.0f} MB; largest error {result.max_error:.1e}, of the norm {result.norm_error:.1e}",
    ]
    servers = shares.cpu_ns_per_parameter_contributor
    lines.append(
        f"shares: bytes per parameter up {shares.bytes_up_per_parameter:.2f}, "
        f"down {shares.bytes_down_per_parameter:.2f}; "
        f"CPU ns per parameter: agent {shares.agent_cpu_ns_per_parameter:.0f}, both servers "
        f"{servers.ingest + servers.distances + servers.sum + servers.output:.0f}; "
        f"largest error {shares.max_abs_difference_to_plain:.1e}"
    )
    return "\n".join(lines)
