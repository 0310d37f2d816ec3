"""CPU time, memory and bytes of running processes, as Linux counts them.

CPU time of a group is what Linux counts for every process of it, ended ones included: a process that was waited for
is in its parent's figure, one that was not is a zombie that still shows its own. Memory is the sum of resident sets,
so pages that two processes share count twice.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from protocol.errors import ProtocolViolation

_RESET_PEAK: Final = "5"
_CPU_CLOCK: Final = 2  # CPUCLOCK_SCHED: the nanoseconds that all threads of a process have run
_IDLE_SHARE: Final = 0.1
_IDLE_LOOK_S: Final = 0.1
_IDLE_LOOKS: Final = 3


def cpu_ns(pid: int) -> int:
    """CPU time of a process, all its threads, running children and children that have ended."""
    process = psutil.Process(pid)
    ended = process.cpu_times()
    running = [pid, *(child.pid for child in process.children(recursive=True))]
    return sum(time.clock_gettime_ns(_clock_of(one)) for one in running) + int(
        1e9 * (ended.children_user + ended.children_system)
    )


def _clock_of(pid: int) -> int:
    """The clock id of another process's CPU time, as clock_getcpuclockid(3) makes it."""
    return (~pid << 3) | _CPU_CLOCK


def wait_until_idle(pids: list[int], within_s: float = 600.0) -> None:
    """Return once the processes together have used less than a tenth of one core for a while.

    Raises: TimeoutError
    """
    deadline, quiet = time.monotonic() + within_s, 0
    while quiet < _IDLE_LOOKS:
        before = sum(map(cpu_ns, pids))
        time.sleep(_IDLE_LOOK_S)
        used_s = (sum(map(cpu_ns, pids)) - before) / 1e9
        quiet = quiet + 1 if used_s < _IDLE_SHARE * _IDLE_LOOK_S else 0
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} are still busy after {within_s:g} s")


def peak_mb(pid: int) -> float:
    """The largest resident set since the start or the last ``reset_peak``, files mapped included."""
    return _status_mb(pid, "VmHWM")


def resident_mb(pid: int) -> float:
    """The resident set now."""
    return _status_mb(pid, "VmRSS")


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


def _status_mb(pid: int, key: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise KeyError(f"/proc/{pid}/status has no {key}")


_EVERY_S: Final = 0.2
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATE, _PARENT, _TIMES, _RESIDENT = 0, 1, slice(11, 15), 21
"""Places in /proc/PID/stat behind the process's name: proc(5)."""


@dataclass(frozen=True)
class Used:
    """What a group of processes has used so far, and holds now."""

    cpu_s: float
    resident_mb: float


@dataclass(frozen=True)
class Reading:
    """Everything at one moment of the monotonic clock."""

    at_s: float
    servers: Used
    clients: Used
    up_bytes: int
    down_bytes: int


@dataclass(frozen=True)
class Between:
    """What was used between two moments; memory is the largest sum seen between them."""

    seconds: float
    server_cpu_s: float
    client_cpu_s: float
    server_peak_mb: float
    client_peak_mb: float
    up_bytes: float
    down_bytes: float

    def with_bytes(self, up: float, down: float) -> Between:
        """The same with bytes that were counted elsewhere."""
        return replace(self, up_bytes=up, down_bytes=down)


def used(roots: Sequence[int]) -> Used:
    """Of these processes and all below them, as /proc has it now."""
    return _used(roots, _processes())


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._read()

    def _read_on(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._read()

    def _read(self) -> None:
        at_s, found = time.monotonic(), _processes()
        self.readings.append(
            Reading(at_s, _used(self._servers, found), _used(self._clients, found), *self._bytes_now())
        )


def between(readings: Sequence[Reading], begin_s: float, end_s: float) -> Between:
    """From one moment to another. Raises: ProtocolViolation, when nobody read around them"""
    inside = [one for one in readings if begin_s <= one.at_s <= end_s]
    if not inside or readings[0].at_s > begin_s or readings[-1].at_s < end_s:
        raise ProtocolViolation(f"gauge: no readings from {begin_s:.1f} to {end_s:.1f} s")

    def grown(of: Callable[[Reading], float]) -> float:
        return _at(readings, end_s, of) - _at(readings, begin_s, of)

    return Between(
        seconds=end_s - begin_s,
        server_cpu_s=grown(lambda one: one.servers.cpu_s),
        client_cpu_s=grown(lambda one: one.clients.cpu_s),
        server_peak_mb=max(one.servers.resident_mb for one in inside),
        client_peak_mb=max(one.clients.resident_mb for one in inside),
        up_bytes=grown(lambda one: one.up_bytes),
        down_bytes=grown(lambda one: one.down_bytes),
    )


def _at(readings: Sequence[Reading], moment_s: float, of: Callable[[Reading], float]) -> float:
    """Linear between the readings before and after."""
    after = next(place for place, one in enumerate(readings) if one.at_s >= moment_s)
    last, first = readings[after], readings[max(0, after - 1)]
    if last.at_s == first.at_s:
        return of(last)
    share = (moment_s - first.at_s) / (last.at_s - first.at_s)
    return of(first) + share * (of(last) - of(first))


@dataclass(frozen=True)
class _Process:
    parent: int
    cpu_s: float
    resident_mb: float


def _processes() -> dict[int, _Process]:
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = (
                Path("/proc", entry, "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            )
        except (FileNotFoundError, ProcessLookupError):
            continue
        cpu_s = sum(map(int, fields[_TIMES])) / _TICKS_PER_S
        found[int(entry)] = _Process(int(fields[_PARENT]), cpu_s, int(fields[_RESIDENT]) * _PAGE_BYTES / 1e6)
    return found


def _used(roots: Sequence[int], found: dict[int, _Process]) -> Used:
    children: dict[int, list[int]] = {}
    for pid, process in found.items():
        children.setdefault(process.parent, []).append(pid)
    todo, cpu_s, resident_mb = [pid for pid in roots if pid in found], 0.0, 0.0
    while todo:
        pid = todo.pop()
        cpu_s += found[pid].cpu_s
        resident_mb += found[pid].resident_mb
        todo += children.get(pid, [])
    return Used(cpu_s, resident_mb)
