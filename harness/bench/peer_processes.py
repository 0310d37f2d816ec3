"""What other systems run in: an environment of their own, processes, a relay that counts bytes, marks of rounds."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from harness.bench.meter import Between, Reading, between
from protocol.errors import ConfigurationError, ProtocolViolation, Unavailable

DEFAULT_CACHE: Final = Path("~/.cache/moiety-peers")
"""Where other systems' environments are kept unless somebody says otherwise."""


_INSTALLED: Final = "installed.txt"
_MADE_WITHIN_S: Final = 900.0


@dataclass(frozen=True)
class Environment:
    """A virtual environment's folder."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def program(self, name: str) -> str:
        """What ``name`` is called in it."""
        return str(self.folder / "bin" / name)

    @property
    def variables(self) -> dict[str, str]:
        """This process's environment without our packages, its own programs first, one thread a library."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return {**kept, **threads, "PATH": f"{self.folder / 'bin'}{os.pathsep}{kept.get('PATH', '')}"}


def environment(cache: Path, name: str, requirements: tuple[str, ...]) -> Environment:
    """Made unless it is there with just these requirements.

    Raises: ConfigurationError with the last line of what failed
    """
    wanted = "\n".join(requirements)
    folder = cache / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
    made = Environment(folder)
    if (folder / _INSTALLED).exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    _done(f"python -m venv {folder}", [sys.executable, "-m", "venv", "--clear", str(folder)])
    quiet = ["install", "--quiet", "--disable-pip-version-check"]
    _done(f"pip install {' '.join(requirements)}", [str(made.python), "-m", "pip", *quiet, *requirements])
    (folder / _INSTALLED).write_text(wanted, encoding="utf-8")
    return made


def _done(what: str, command: list[str]) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MADE_WITHIN_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"{what}: not done in {_MADE_WITHIN_S:g} s") from None
    if ended.returncode != 0:
        last = ((ended.stderr or ended.stdout).strip().splitlines() or ["no message"])[-1]
        raise ConfigurationError(f"{what}: {last}")


_BUFFER_BYTES: Final = 1 << 18
_LOOPBACK: Final = "127.0.0.1"


class Relay:
    """Whoever connects to ``port`` speaks to ``target_port``."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


_PROJECT: Final = Path(__file__).resolve().parents[2]
ADOPTING: Final = """import ctypes, os, sys
PR_SET_CHILD_SUBREAPER = 36
if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
    sys.exit("prctl(PR_SET_CHILD_SUBREAPER) failed")
os.execvp(sys.argv[1], sys.argv[1:])
"""
# A program that detaches its helpers (a double fork) would have them counted nowhere. Linux's "child subreaper" mark
# outlives exec, so that whatever a peer starts stays in the tree below it.
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
                [sys.executable, "-c", ADOPTING, *command],
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


STEP: Final = 1e-3
"""Client number i, from 1, adds i times this to every parameter in every round."""
_LARGEST_ERROR: Final = 1e-4
_WITHIN_S_PER_ROUND: Final = 300.0


@dataclass(frozen=True)
class Asked:
    """``rounds`` are measured, after one that warms everything up."""

    parameters: int
    clients: int
    rounds: int

    @property
    def all_rounds(self) -> int:
        return 1 + self.rounds

    @property
    def within_s(self) -> float:
        """How long a peer may take for everything."""
        return _WITHIN_S_PER_ROUND * (1 + self.all_rounds)


@dataclass(frozen=True)
class Taken:
    """Per round."""

    measured: Between
    rounds: int

    @classmethod
    def of(cls, readings: Sequence[Reading], marks: Marks, asked: Asked) -> Self:
        """Of the rounds after the first. Raises: ProtocolViolation, when the average is wrong"""
        first, last = 2, 2 + asked.rounds
        _require_average(marks, asked)
        return cls(between(readings, marks.rounds[first], marks.rounds[last]), asked.rounds)


def _require_average(marks: Marks, asked: Asked) -> None:
    """What was noted last is the model after some whole number of rounds, everywhere the same."""
    if marks.found is None:
        raise ProtocolViolation("the peer has noted no model")
    least, most = marks.found
    step = STEP * (1 + asked.clients) / 2
    whole = round(most / step)
    if not (whole >= asked.rounds and math.isclose(least, most, abs_tol=_LARGEST_ERROR)) or not math.isclose(
        most, whole * step, abs_tol=_LARGEST_ERROR
    ):
        raise ProtocolViolation(f"the peer's model lies between {least:g} and {most:g}, not at a multiple of {step:g}")
