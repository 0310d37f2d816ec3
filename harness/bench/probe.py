"""CPU time and memory of running processes, as Linux counts them."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from pathlib import Path
from typing import Final

import psutil

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
