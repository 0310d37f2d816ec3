"""``moiety lab bench shards``: one side's sketches and masked sum by ranges, over a Ray cluster of so many workers."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from harness.bench.meter import Benchmark, Figures, facts, scratch, table
from harness.warm import warm
from protocol.arithmetic.ring import SEED_BYTES, Usage, expand, octets
from protocol.channel.sealing import encrypt_body
from protocol.messages.control import ShareKind
from protocol.parameters import MAX_ENCODED_NORM_LOG2, StudyParameters
from servers.scale.passes import Here, Shards, Workers
from servers.scale.ranges import Bound, Cost, Done, StoredShare, SumDone, Task, WrappingKey, read_wrapping_key
from servers.scale.ray import OnRay
from servers.store.chunk_tags import ENCRYPTED, Tagger
from servers.store.object_storage import FolderStorage


class Pass(Figures):
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


class ByWorkers(Figures):
    """Both passes with so many workers; 0: the server's own process, without Ray."""

    workers: int
    sketch: Pass
    sum: Pass
    worker_peak_rss_mb: float


class ShardsBenchmark(Benchmark):
    """One side's passes over the same stored shares, by number of workers; all gave the same bits."""

    TITLE: ClassVar[str] = "Passes by ranges: {parameters:,} parameters, {shares} shares"
    KIND: ClassVar[str] = "shards"
    parameters: int
    shares: int
    range_parameters: int
    load: float
    stored_bytes: int
    runs: tuple[ByWorkers, ...] = Field(repr=False)

    def section(self) -> str:
        """A row for each pass, with its CPU per parameter and share."""
        n = self.parameters * self.shares
        head = ("pass", "workers", "seconds", "CPU s, workers", "of the busiest", "CPU s, server")
        rows = [
            (
                name,
                str(run.workers),
                f"{one.seconds:.1f}",
                f"{one.workers_cpu_seconds:.2f}",
                f"{one.busiest_worker_cpu_seconds:.2f}",
                f"{one.server_cpu_seconds:.3f}",
                f"{one.workers_cpu_seconds / n * 1e9:.1f}",
                f"{one.bytes_read / 1e9:.2f}",
                f"{run.worker_peak_rss_mb:.0f}",
            )
            for run in self.runs
            for name, one in (("sketch", run.sketch), ("sum", run.sum))
        ]
        more = ("ns per parameter and share", "GB read", "MB, a worker")
        return f"{super().section()}\n{table((*head, *more), rows, texts=1)}"


_PIECE: Final = 2**20
_READ: Final = 2**17
_SHARES_A_TASK: Final = 32


class _Counted:
    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.costs: list[Cost] = []
        self.digests: dict[int, str] = {}
        """Digests of a sum's ranges, by where they start."""

    def do(self, tasks: Sequence[Task], over: threading.Event) -> Iterator[Done]:
        for done in self._workers.do(tasks, over):
            self.costs.append(done.cost)
            if isinstance(done, SumDone):
                self.digests[done.start] = done.digest
            yield done

    def close(self) -> None:
        self._workers.close()


def benchmark_shards(
    parameters: int, shares: int, workers: Sequence[int], range_parameters: int, folder: Path | None
) -> ShardsBenchmark:
    """Raises: AssertionError, when any number of workers gives other bits"""
    warm()
    load, _, _ = os.getloadavg()
    with scratch(folder) as at:
        key_file = at / "wrapping.key"
        key_file.touch(mode=0o600)
        key_file.write_text(secrets.token_hex(32))
        storage, wrapping = FolderStorage(at / "storage"), read_wrapping_key(key_file)
        stored = [_store(storage, wrapping, place, parameters) for place in range(shares)]
        size = sum(path.stat().st_size for path in (at / "storage").iterdir())
        runs, found = [], set[str]()
        for count in (0, *workers):
            hired = Here(storage, wrapping) if count == 0 else OnRay(None, count, str(at / "storage"), key_file)
            run, digest = _run(hired, count, storage, wrapping, at / "sums", stored, range_parameters)
            runs.append(run)
            found.add(digest)
    if len(found) != 1:
        raise AssertionError("numbers of workers differ in what they give")
    return ShardsBenchmark(
        parameters=parameters,
        shares=shares,
        range_parameters=range_parameters,
        **facts(f"shards --workers {','.join(map(str, workers))} --parameters {parameters} --shares {shares}"),
        load=load,
        stored_bytes=size,
        runs=tuple(runs),
    )


def _store(storage: FolderStorage, wrapping: WrappingKey, place: int, parameters: int) -> StoredShare:
    """A share as it lies with a server: every second one a seed."""
    name, content_key = f"{place:064x}", secrets.token_bytes(32)
    kind = ShareKind.SEED if place % 2 else ShareKind.VECTOR
    seed = secrets.token_bytes(SEED_BYTES)
    content = [seed] if kind is ShareKind.SEED else _vector(seed, parameters)
    tagger = Tagger(ENCRYPTED)
    with tempfile.NamedTemporaryFile(dir=storage.folder, delete=False) as file:
        for chunk in encrypt_body(content_key, content):
            file.write(chunk)
            tagger.write(chunk)
    storage.take_in(Path(file.name), name)
    return StoredShare(name, kind, parameters, wrapping.wrap(content_key, name), tagger.finish())


def _vector(seed: bytes, parameters: int) -> Iterator[memoryview]:
    for start in range(0, parameters, _PIECE):
        yield octets(expand(seed, Usage.SHARE, min(_PIECE, parameters - start), start=start))


def _run(
    hired: Workers,
    count: int,
    storage: FolderStorage,
    wrapping: WrappingKey,
    sums: Path,
    stored: Sequence[StoredShare],
    range_parameters: int,
) -> tuple[ByWorkers, str]:
    """-> what it took, and a digest of all that came out"""
    counted = _Counted(hired)
    cut = Shards(counted, storage, wrapping, sums, range_elements=range_parameters, shares_a_task=_SHARES_A_TASK)
    length = stored[0].length
    parameters = StudyParameters(
        dimension=length, clip_norm=1.0, encoded_norm_log2=MAX_ENCODED_NORM_LOG2, weight_grid=1, least_contributors=3
    )
    bound = Bound("ab" * 32, 1, 1, "cd" * 32, "ef" * 32)
    mask, result = bytes(range(SEED_BYTES)), hashlib.sha256()
    try:
        first = parameters.model_copy(update={"dimension": min(length, max(1, count) * range_parameters)})
        cut.sketches(Bound("00" * 32, 1, 1, "cd" * 32, ""), stored, first)  # starts workers, compiles what they run
        sketch = _timed(counted, lambda: result.update(octets(np.concatenate(cut.sketches(bound, stored, parameters)))))
        sum_ = _timed(counted, lambda: _read(cut, bound, stored, mask, length))
        result.update(str(sorted(counted.digests.items())).encode())
        peak = max(cost.peak_rss_bytes for cost in counted.costs)
        cut.forget(bound.study)
    finally:
        cut.close()
    return ByWorkers(workers=count, sketch=sketch, sum=sum_, worker_peak_rss_mb=peak / 1e6), result.hexdigest()


def _read(cut: Shards, bound: Bound, stored: Sequence[StoredShare], mask: bytes, length: int) -> None:
    masked = cut.masked_sum(bound, stored, mask, length)
    for start in range(0, length, _READ):
        masked.elements(start, min(start + _READ, length))


def _timed(counted: _Counted, do: Callable[[], None]) -> Pass:
    counted.costs = []
    began_s, cpu_s = time.perf_counter(), time.process_time()
    do()
    seconds, own = time.perf_counter() - began_s, time.process_time() - cpu_s
    by_process = dict[int, float]()
    for cost in counted.costs:
        by_process[cost.process] = by_process.get(cost.process, 0.0) + cost.cpu_seconds
    total = sum(by_process.values())
    return Pass(
        seconds=seconds,
        workers_cpu_seconds=total,
        busiest_worker_cpu_seconds=max(by_process.values()),
        server_cpu_seconds=own - by_process.get(os.getpid(), 0.0),
        bytes_read=sum(cost.bytes_read for cost in counted.costs),
        ranges=len(counted.costs),
    )
