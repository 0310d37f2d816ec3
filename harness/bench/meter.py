"""CPU time, memory and bytes of running processes, as Linux counts them.

CPU time of a group is what Linux counts for every process of it, ended ones included: a process that was waited for
is in its parent's figure, one that was not is a zombie that still shows its own. Memory is the sum of resident sets,
so pages that two processes share count twice.

The result of a whole round is here, since other benchmarks and the page read it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import psutil
from pydantic import Field

from harness.versions import versions
from host.frozen import Frozen
from host.output_files import rewrite
from protocol.errors import ProtocolViolation
from protocol.parameters import WORD_BITS, RingBits

TEXTS: Final[Mapping[str, str]] = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
"""The words of docs/benchmarks.md beside the figures, by section."""
_NO_DECIMALS_FROM: Final = 1000
_RESET_PEAK: Final = "5"
_CPU_CLOCK: Final = 2  # CPUCLOCK_SCHED: the nanoseconds that all threads of a process have run
_IDLE_SHARE: Final = 0.1
_IDLE_LOOK_S: Final = 0.1
_IDLE_LOOKS: Final = 3
_IDLE_WITHIN_S: Final = 600.0


def cpu_ns(pid: int) -> int:
    """CPU time of a process, all its threads, running children and children that have ended."""
    process = psutil.Process(pid)
    ended = process.cpu_times()
    running = [pid, *(child.pid for child in process.children(recursive=True))]
    return sum(time.clock_gettime_ns(_clock_of(one)) for one in running) + int(
        1e9 * (ended.children_user + ended.children_system)
    )


def cpu_ns_each(work: Callable[[], object], times: int) -> float:
    """CPU time that this process takes for some work, over so many."""
    begun = time.process_time_ns()
    work()
    return (time.process_time_ns() - begun) / times


def _clock_of(pid: int) -> int:
    """The clock id of another process's CPU time, as clock_getcpuclockid(3) makes it."""
    return (~pid << 3) | _CPU_CLOCK


def wait_until_idle(pids: list[int]) -> None:
    """Return once the processes together have used less than a tenth of one core for a while.

    Raises: TimeoutError
    """
    deadline, quiet = time.monotonic() + _IDLE_WITHIN_S, 0
    while quiet < _IDLE_LOOKS:
        before = sum(map(cpu_ns, pids))
        time.sleep(_IDLE_LOOK_S)
        used_s = (sum(map(cpu_ns, pids)) - before) / 1e9
        quiet = quiet + 1 if used_s < _IDLE_SHARE * _IDLE_LOOK_S else 0
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} are still busy after {_IDLE_WITHIN_S:g} s")


def peak_mb(pid: int) -> float:
    """The largest resident set since the start or the last ``reset_peak``, files mapped included."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def resident_mb(pid: int) -> float:
    """The resident set now."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6


def reset_peak(pid: int) -> None:
    """The peak starts again at what is resident now; where that is not permitted it counts from the start."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK, encoding="ascii")


def machine() -> str:
    """Processor, cores and memory, in one line."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    memory_gb = psutil.virtual_memory().total / 1e9
    release = platform.release().split("-")[0]
    return f"{model}, {os.cpu_count()} cores, {memory_gb:.0f} GB, {platform.system()} {release}"


_EVERY_S: Final = 0.2


class Reading(NamedTuple):
    """CPU, memory and bytes of two groups of processes at one moment of the monotonic clock."""

    at_s: float
    server_cpu_s: float
    server_mb: float
    client_cpu_s: float
    client_mb: float
    up_bytes: float
    down_bytes: float


@dataclass(frozen=True)
class Between:
    """CPU, memory and bytes between two moments; memory is the largest sum seen between them."""

    seconds: float
    server_cpu_s: float
    client_cpu_s: float
    server_peak_mb: float
    client_peak_mb: float
    up_bytes: float
    down_bytes: float


class Gauge:
    """Reads both groups several times a second while it is open. ``bytes_now``: up and down so far."""

    def __init__(
        self, servers: Sequence[int], clients: Sequence[int], bytes_now: Callable[[], tuple[int, int]] = lambda: (0, 0)
    ) -> None:
        self._servers, self._clients, self._bytes_now = tuple(servers), tuple(clients), bytes_now
        self.readings: list[Reading] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="gauge", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._read()

    def _read_on(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._read()

    def _read(self) -> None:
        at_s = time.monotonic()
        self.readings.append(Reading(at_s, *used(self._servers), *used(self._clients), *self._bytes_now()))


def between(readings: Sequence[Reading], begin_s: float, end_s: float) -> Between:
    """Interpolate readings from one moment to another. Raises: ProtocolViolation, when nobody read around them"""
    inside = [one for one in readings if begin_s <= one.at_s <= end_s]
    if not inside or readings[0].at_s > begin_s or readings[-1].at_s < end_s:
        raise ProtocolViolation(f"gauge: no readings from {begin_s:.1f} to {end_s:.1f} s")
    moments = [one.at_s for one in readings]

    def grown(of: str) -> float:
        begin, end = np.interp((begin_s, end_s), moments, [getattr(one, of) for one in readings])
        return float(end - begin)

    return Between(
        seconds=end_s - begin_s,
        server_cpu_s=grown("server_cpu_s"),
        client_cpu_s=grown("client_cpu_s"),
        server_peak_mb=max(one.server_mb for one in inside),
        client_peak_mb=max(one.client_mb for one in inside),
        up_bytes=grown("up_bytes"),
        down_bytes=grown("down_bytes"),
    )


def used(roots: Sequence[int]) -> tuple[float, float]:
    """CPU seconds so far and resident MB of these processes and all below them."""
    cpu_s = resident_mb = 0.0
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(root)
            for process in (first, *first.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
                    taken, resident_mb = process.cpu_times(), resident_mb + process.memory_info().rss / 1e6
                    cpu_s += taken.user + taken.system + taken.children_user + taken.children_system
    return cpu_s, resident_mb


# --- bytes ---

_BUFFER_BYTES: Final = 1 << 18
_LOOPBACK: Final = "127.0.0.1"


class Relay:
    """A TCP relay on loopback that counts the bytes of both directions, TLS and all.

    Whoever connects to ``port`` speaks to ``target_port``.
    """

    def __init__(self, target_port: int) -> None:
        self._target = (_LOOPBACK, target_port)
        self._listening = socket.create_server((_LOOPBACK, 0), backlog=64)
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._up = self._down = 0
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="relay", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        with self._lock:
            still_open = list(self._open)
        for one in still_open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def counted(self) -> tuple[int, int]:
        """Bytes up, from clients to the server, and down, so far."""
        with self._lock:
            return self._up, self._down

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._join, args=(client, server), name="relay", daemon=True).start()

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        """Both directions of one connection, until both have ended."""
        with client, server:
            with self._lock:
                self._open |= {client, server}
            down = threading.Thread(target=self._carry, args=(server, client, False), name="relay", daemon=True)
            down.start()
            self._carry(client, server, up=True)
            down.join()
            with self._lock:
                self._open -= {client, server}

    def _carry(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        buffer = bytearray(_BUFFER_BYTES)
        view = memoryview(buffer)
        with contextlib.suppress(OSError):
            while count := source.recv_into(buffer):
                sink.sendall(view[:count])
                with self._lock:
                    self._up += count if up else 0
                    self._down += 0 if up else count
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class Figures(Frozen):
    """A part of a result; unknown fields are refused."""

    def shown(self) -> dict[str, str]:
        """Single figures as text, by their names; those of a part have the part's name before theirs."""
        found: dict[str, str] = {}
        for name, field in type(self).model_fields.items():
            value, words = getattr(self, name), name.replace("_", " ")
            if not field.repr or _is_series(value):
                continue
            if isinstance(value, Figures) and not isinstance(value, Spread):
                found |= {f"{words}, {one}": text for one, text in value.shown().items()}
            else:
                found[words] = _shown(value)
        return found


def _is_series(value: object) -> bool:
    return isinstance(value, tuple) and any(isinstance(one, Figures) for one in value)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= _NO_DECIMALS_FROM else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else str(value)


class Benchmark(Figures):
    """One run of a benchmark: the command that repeats it, when, where and with which versions.

    ``TITLE`` may name any figure; ``KIND`` names the words beside the figures. What has ``repr=False`` is in the JSON
    alone.
    """

    TITLE: ClassVar[str]
    KIND: ClassVar[str] = ""
    command: str = Field(repr=False)
    date: str = Field(repr=False)
    machine: str = Field(repr=False)
    versions: dict[str, str] = Field(repr=False)

    def section(self) -> str:
        """The figures as commands print them and docs/benchmarks.md shows them: a list, and a table of each series."""
        listed = "\n".join(f"- {name}: {text}" for name, text in self.shown().items())
        every = [getattr(self, name) for name, field in type(self).model_fields.items() if field.repr]
        tables = [figures_table(one).rstrip() for one in every if _is_series(one)]
        parts = (f"## {self.TITLE.format(**dict(self))}", TEXTS.get(self.KIND, "").strip(), listed, *tables)
        return "\n\n".join(filter(None, parts)) + "\n"


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
    a: float
    b: float


class RoundBenchmark(Benchmark):
    """One whole round. Every figure is explained in docs/benchmarks.md."""

    TITLE: ClassVar[str] = "A round of {parameters:,} parameters, {sites} contributors and the requester"
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
        "command": f"moiety lab bench {command}",
        "date": datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "versions": versions(),
    }


def write_result(result: Benchmark, path: Path) -> None:
    """Write the JSON file that ``moiety lab results`` reads."""
    rewrite(path, result.model_dump_json(indent=2) + "\n")


@contextmanager
def scratch(folder: Path | None = None) -> Iterator[Path]:
    """A folder of its own, inside of ``folder`` where one is named; removed in the end."""
    with tempfile.TemporaryDirectory(prefix="moiety-bench-", dir=folder) as name:
        yield Path(name)


def figures_table(rows: Sequence[Figures]) -> str:
    """A row for each, a column for every figure that they show."""
    first = rows[0]
    texts = sum(isinstance(value, str) for name, value in first if type(first).model_fields[name].repr)
    return table(tuple(first.shown()), [tuple(row.shown().values()) for row in rows], texts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 0) -> str:
    """A table in Markdown: the first ``texts`` columns are words, the others numbers."""
    rule = "|" + " --- |" * texts + " ---: |" * (len(head) - texts)
    return "".join(f"{line}\n" for line in (_row(head), rule, *map(_row, rows)))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
