"""The processes of one peer, started and ended; its rounds, read from the moments that it notes in a file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from protocol.errors import ProtocolViolation, Unavailable

_PROJECT: Final = Path(__file__).resolve().parents[4]
_STOP_WITHIN_S: Final = 10.0
_LOOK_S: Final = 0.2
_TAIL_LINES: Final = 6


@dataclass(frozen=True)
class Marks:
    """When each round began, by number from 1, and the smallest and largest parameter that were noted last."""

    rounds: dict[int, float]
    found: tuple[float, float] | None


def read_marks(path: Path) -> Marks:
    """What the peer has noted so far; lines ``SECONDS round N`` and ``SECONDS found LEAST MOST``."""
    rounds: dict[int, float] = {}
    found = None
    for line in path.read_text(encoding="ascii").splitlines() if path.exists() else []:
        match line.split():
            case [at_s, "round", number]:
                rounds[int(number)] = float(at_s)
            case [_, "found", least, most]:
                found = (float(least), float(most))
            case _:
                raise ProtocolViolation(f"{path}: a line is no mark: {line[:80]!r}")
    return Marks(rounds, found)


@dataclass
class Processes:
    """Everything of one peer; as a context manager all of it is ended, with what it started, whatever happens."""

    folder: Path
    variables: Mapping[str, str] = field(repr=False)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._running.values():
                _signal_group(process, number)
            deadline = time.monotonic() + _STOP_WITHIN_S
            while any(p.poll() is None for p in self._running.values()) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)

    def start(self, name: str, command: Sequence[str], extra: Mapping[str, str] | None = None) -> int:
        """A program in a group of its own, which keeps its orphans; its process id."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603 - programs of the peer's own environment
                [sys.executable, str(Path(__file__).with_name("adopting.py")), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**self.variables, **(extra or {})},
                start_new_session=True,
            )
        return self._running[name].pid

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

    def wait_for_round(self, marks: Path, number: int, names: Sequence[str], within_s: float) -> Marks:
        """Until round ``number`` has begun. Raises: Unavailable, when that is too long or a program has ended"""
        deadline = time.monotonic() + within_s
        while number not in (found := read_marks(marks)).rounds:
            for name in names:
                self.check(name)
            if time.monotonic() > deadline:
                tails = "; ".join(f"{name}: {self.tail(name)}" for name in names)
                raise Unavailable(f"round {number} had not begun after {within_s:g} s; {tails}")
            time.sleep(_LOOK_S)
        return found

    def check(self, name: str) -> None:
        """Raises: Unavailable, when a program has ended with an error"""
        code = self._running[name].poll()
        if code:
            raise Unavailable(f"{name} ended with exit code {code}: {self.tail(name)}")

    def tail(self, name: str) -> str:
        """The end of its log, in one line."""
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
