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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from prometheus_client.parser import text_string_to_metric_families

from harness.bench import meter
from harness.engine.parties import OPERATOR_NAMES
from harness.federation.processes import RunningFederation
from protocol.errors import Unavailable
from protocol.sharing import Side

PROJECT: Final = Path(__file__).resolve().parents[2]
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


def counters(federation: RunningFederation, side: Side, name: str, label: str) -> Iterator[tuple[str, int]]:
    """The values of one of a server's metrics, with the label that tells them apart."""
    for family in text_string_to_metric_families(federation.metrics(side)):
        for sample in family.samples:
            if sample.name == name:
                yield sample.labels[label], int(sample.value)


@dataclass
class Processes:
    """Programs with a log each; as a context manager all are ended, with what they started, whatever happens."""

    folder: Path
    variables: Mapping[str, str] = field(repr=False)
    cwd: Path | None = None
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
                cwd=self.cwd or self.folder,
                env=self.variables,
                start_new_session=True,
            )
        return self._running[name].pid

    def end(self, names: Sequence[str], within_s: float) -> None:
        """Ask programs to end, and wait for it. Raises: Unavailable, when one ends with an error or not in time"""
        for name in names:
            self._running[name].send_signal(signal.SIGTERM)
        deadline = time.monotonic() + within_s
        for name in names:
            try:
                self._running[name].wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Unavailable(f"{name} has not ended after {within_s:g} s: {self.tail(name)}") from None
            self.check(name)

    def wait_for_port(self, name: str, port: int, within_s: float = 90.0) -> None:
        """Until somebody listens there. Raises: Unavailable"""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            self.check(name)
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            except OSError:
                time.sleep(_LOOK_S)
            else:
                return
        raise Unavailable(f"{name} does not listen after {within_s:g} s: {self.tail(name)}")

    def wait_for_text(self, name: str, text: str, within_s: float = 120.0) -> None:
        """Until a program's log holds it. Raises: Unavailable"""
        deadline = time.monotonic() + within_s
        while text not in (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace"):
            self.check(name)
            if time.monotonic() > deadline:
                raise Unavailable(f"{name} has not said {text!r} after {within_s:g} s: {self.tail(name)}")
            time.sleep(_LOOK_S)

    def check(self, name: str, *, may_end: bool = True) -> None:
        """Raises: Unavailable, when a program has ended with an error, or at all where it must not"""
        code = self._running[name].poll()
        if code or (code is not None and not may_end):
            raise Unavailable(f"{name} ended with exit code {code}: {self.tail(name)}")

    def tail(self, name: str) -> str:
        lines = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(line.strip()[:200] for line in lines[-_TAIL_LINES:])


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
