"""The CKKS path measured: bytes, CPU time, memory and error, next to the share path.

Updates, weights and number of vectors (N contributors and the requester) are those of ``moiety bench round``. It
runs in a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from harness.bench import probe
from harness.bench.ckks.ours import measure_ours
from harness.bench.ckks.results import CkksBenchmark, CkksFigures
from harness.bench.round import benchmark_round
from harness.versions import versions
from protocol.ckks.parameters import CkksParameters
from protocol.ckks.scheme import Scheme


def benchmark_ckks(dimension: int, sites: int, folder: Path | None = None) -> CkksBenchmark:
    """Both, one after the other.

    Raises: ConfigurationError, when TenSEAL is missing; ProtocolViolation, when an opened average is off
    """
    Scheme(CkksParameters())
    with tempfile.TemporaryDirectory(prefix="moiety-bench-", dir=folder) as name:
        ours = _apart(measure_ours, CkksParameters(), dimension, sites + 1, Path(name))
    return CkksBenchmark(
        **dict(ours),
        parameters=dimension,
        sites=sites,
        command=f"moiety bench ckks --parameters {dimension} --sites {sites}",
        date=datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=probe.machine(),
        shares=benchmark_round(dimension, sites, folder),
        versions={one.name: one.version for one in versions()} | {"tenseal": version("tenseal")},
    )


def _apart(measure: Callable[..., CkksFigures], *arguments: object) -> CkksFigures:
    """Run it in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()
