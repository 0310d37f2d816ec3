"""A person's terminal: commands of ``moiety`` in this process, and lines for a shell."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import pytest

from harness.federation.processes import Forked
from moiety import main
from tests.documents.forked_call import called
from tests.documents.lines import ROOT

Process = Forked | subprocess.Popen[bytes]
PATIENCE_S = 900.0
"""Enough for processes of a busy machine."""


def environment() -> dict[str, str]:
    """This process's, in which ``moiety`` is this checkout's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def shell(line: str, folder: Path, within_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a line in a shell; it may fail."""
    command = ["bash", "-ec", line]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=within_s
    )


def until_said(said: str, log: Path, times: int = 1, process: Process | None = None) -> None:
    """Wait until a process, which goes on, has written this so often."""
    deadline = time.monotonic() + PATIENCE_S
    while log.read_text().count(said) < times:
        assert process is None or process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


class Terminal:
    """Answers what a command printed; ``> FILE`` puts it into a file as a shell does."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object, status: int | None = None) -> str:
        """Raises: AssertionError for an error that is printed, or another status than ``status``"""
        typed = [str(word) for word in words]
        into = typed[typed.index(">") + 1] if ">" in typed else None
        self._capsys.readouterr()
        ended: object = 0
        try:
            main(typed[: typed.index(">")] if into else typed)
        except SystemExit as end:
            ended = end.code or 0
        printed = self._capsys.readouterr()
        assert status or "error" not in printed.err, f"{' '.join(typed)}: {printed.err}"
        assert status in (None, ended), f"{' '.join(typed)} ended with {ended}: {printed.out}{printed.err}"
        if into:
            Path(into).write_text(printed.out, encoding="utf-8")
        return printed.out


_PROGRAM: Final = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    line.sendall(json.dumps([os.getpid(), os.getcwd(), dict(os.environ), sys.argv[1:]]).encode() + b"\\n")
    sys.exit(int(line.recv(8) or b"1"))
"""
_STARTING: Final = threading.Lock()


class ForkedMoiety:
    """A folder with a program ``moiety``; each call is a process forked from one that has the imports in memory.

    For a shell that runs dozens of commands. A call prints where the program would, and dies with it.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)
        address, program = str(self.path / "line"), self.path / "moiety"
        program.write_text(_PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o700)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the calls, whose programs have ended."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        self._listener.close()
        self._folder.cleanup()

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=run, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._call, line)

    def _call(self, line: socket.socket) -> None:
        with line, line.makefile("rb") as said, suppress(OSError):  # a program that was killed reads no answer
            pid, folder, environment, words = json.loads(said.readline())
            with _STARTING:
                process = Forked(called, [str(pid), folder, *words], Path(f"/proc/{pid}/fd/1"), environment)
            while (code := process.poll()) is None and not select.select([line], [], [], 0.02)[0]:
                pass
            if code is None:  # the program was killed
                process.send_signal(signal.SIGKILL)
                process.wait()
            else:
                line.sendall(str(code).encode())
