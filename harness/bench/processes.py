"""Processes that benchmarks start: both servers without agents, and programs that are ended with all below them.

A program that detaches its helpers (a double fork) would have them counted nowhere. Linux's "child subreaper" mark
outlives exec, so that whatever a program starts stays in the tree below it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from harness.bench import meter
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.processes import RunningFederation
from protocol.errors import Unavailable
from protocol.sharing import Side

ADOPTING: Final = """import ctypes, os, sys
PR_SET_CHILD_SUBREAPER = 36
if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
    sys.exit("prctl(PR_SET_CHILD_SUBREAPER) failed")
os.execvp(sys.argv[1], sys.argv[1:])
"""
_STOP_WITHIN_S: Final = 10.0
_LOOK_S: Final = 0.2
_TAIL_LINES: Final = 6


class ServersOnly(RunningFederation):
    """A federation whose agents are played by the benchmark."""

    def start(self) -> None:
        for side in Side:
            self.start_server(side)
        for side in Side:
            self.wait_for(side, "/readyz")

    def pid(self, side: Side) -> int:
        return self.process_ids[OPERATOR_NAMES[side]]

    @property
    def pids(self) -> list[int]:
        return [self.pid(side) for side in Side]

    def cpu_ns(self) -> int:
        return sum(map(meter.cpu_ns, self.pids))


@dataclass
class Processes:
    """Programs with a log each; as a context manager all are ended, with what they started, whatever happens."""

    folder: Path
    variables: Mapping[str, str] = field(repr=False)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._running.values():
                _signal_group(process, number)
            deadline = time.monotonic() + _STOP_WITHIN_S
            while any(p.poll() is None for p in self._running.values()) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)

    def start(self, name: str, command: Sequence[str]) -> int:
        """A program in a group of its own, which keeps its orphans; its process id."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603 - our own programs, and those of a peer's environment
                [sys.executable, "-c", ADOPTING, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.variables,
                start_new_session=True,
            )
        return self._running[name].pid

    def wait_for(self, holds: Callable[[], bool], names: Iterable[str], missing: str, within_s: float) -> None:
        """Wait for what these programs do. Raises: Unavailable, when that is too long or one ends with an error"""
        deadline = time.monotonic() + within_s
        while not holds():
            for name in names:
                self.check(name)
            if time.monotonic() > deadline:
                tails = "; ".join(f"{name}: {self.tail(name)}" for name in names)
                raise Unavailable(f"{missing} after {within_s:g} s; {tails}")
            time.sleep(_LOOK_S)

    def wait_for_port(self, name: str, port: int, within_s: float = 90.0) -> None:
        """Until somebody listens there. Raises: as ``wait_for``"""
        self.wait_for(lambda: _listens(port), (name,), f"{name} does not listen", within_s)

    def wait_for_text(self, name: str, text: str, within_s: float = 120.0) -> None:
        """Until a program's log holds it. Raises: as ``wait_for``"""
        self.wait_for(lambda: text in self._log(name), (name,), f"{name} has not said {text!r}", within_s)

    def check(self, name: str) -> None:
        """Raises: Unavailable, when a program has ended with an error"""
        if code := self._running[name].poll():
            raise Unavailable(f"{name} ended with exit code {code}: {self.tail(name)}")

    def tail(self, name: str) -> str:
        return " / ".join(line.strip()[:200] for line in self._log(name).splitlines()[-_TAIL_LINES:])

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
