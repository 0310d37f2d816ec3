"""Programs in processes forked from one that has their modules in memory: a start costs a fraction of a second.

What runs is what the command line runs, in a process of its own: own memory, files, group and environment, killed and
started again like a service. Only the imports (two to three seconds of torch for every agent) are done once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Final

_IN_MEMORY: Final = "harness.federation.in_memory"
ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_FORKING = multiprocessing.get_context("forkserver")


class Forked:
    """A forked process with the part of ``subprocess.Popen`` that a federation uses; it ends with its parent."""

    def __init__(
        self, run: Callable[..., None], arguments: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        _start_forkserver()
        self._process = _FORKING.Process(
            target=_run, args=(run, tuple(arguments), str(log), dict(environment)), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        found = self._process.pid
        if found is None:
            raise RuntimeError("a process that was started has no id")
        return found

    def poll(self) -> int | None:
        """Its exit code, minus the number of the signal that killed it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Raises: subprocess.TimeoutExpired."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("forked", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """To its whole group, once it leads one; nothing where it has ended."""
        if self.poll() is not None:
            return
        try:
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass


def fork_command(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> Forked:
    """``moiety ARGUMENTS`` in a process of its own; what it prints is added to ``log``."""
    return Forked(run_command, arguments, log, environment)


def spawn_command(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The same in a process that shares no memory with another, for whoever measures what one takes."""
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "moiety", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )


def run_command(*arguments: str) -> None:
    """The command line, in the process that was forked for it."""
    import moiety

    moiety.main(arguments)


def one_thread(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, with one thread for each library that would take a processor's all."""
    return {**environment, **dict.fromkeys(ONE_THREAD, "1")}


def _start_forkserver() -> None:
    """Idempotent. The libraries read how many threads they may have when they are imported, which is there."""
    _FORKING.set_forkserver_preload([_IN_MEMORY])
    before = dict(os.environ)
    os.environ.update(one_thread({}))
    try:
        forkserver.ensure_running()
    finally:
        for name in ONE_THREAD:
            os.environ.pop(name)
        os.environ.update(before)


def _run(run: Callable[..., None], arguments: tuple[str, ...], log: str, environment: dict[str, str]) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run(*arguments)


def _end_with_parent() -> None:
    """A parent that was killed stops nobody: without this, a federation would go on for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)
