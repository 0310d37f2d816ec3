"""``results.jsonl``: one line a finished run, written by one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from harness.simulation.case import Case
from harness.simulation.runs import RunKey, RunLine
from protocol.errors import ConfigurationError

RESULTS: Final = "results.jsonl"
PARTIAL: Final = "partial"


class Results:
    """The lines in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / RESULTS

    @property
    def partial(self) -> Path:
        """Where the checkpoints of unfinished runs are."""
        return self.folder / PARTIAL

    def lines(self) -> tuple[RunLine, ...]:
        """Every finished run. A last line that was cut off by a crash is dropped.

        Raises: ConfigurationError for a file that is no results file
        """
        if not self._path.is_file():
            return ()
        whole, _, _ = self._path.read_bytes().rpartition(b"\n")
        try:
            return tuple(RunLine.model_validate_json(line) for line in whole.splitlines())
        except ValidationError as error:
            raise ConfigurationError(f"{self._path} holds a line that is no run: {error}; give another --out") from None

    def append(self, line: RunLine) -> None:
        """Add a finished run, on disk before this returns."""
        with self._path.open("ab+") as file:
            _cut_torn_line(file.fileno())
            file.write(line.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only one process writes here. Raises: ConfigurationError while another one does"""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"{self.folder}: another simulation writes there; wait for it, or give another --out"
                ) from None
            yield


def finished(lines: tuple[RunLine, ...], case: Case, protection: str, folder: Path) -> dict[RunKey, RunLine]:
    """The runs that need not be done again.

    Raises: ConfigurationError when a line comes from this case as it was before a change, or with other protection
    """
    done: dict[RunKey, RunLine] = {}
    for line in lines:
        if line.protection != protection:
            raise ConfigurationError(
                f"{folder} holds runs with --protection {line.protection}, now it is {protection}: give another --out"
            )
        if line.variant in case.names and line.study_digest != case.variant(line.variant).digest:
            raise ConfigurationError(
                f"{case.source}: variant {line.variant!r} is not what it was when the runs in {folder} were made, and "
                "two studies are not mixed in one table: give another --out, or undo the change"
            )
        done[line.key] = line
    return done


def _cut_torn_line(handle: int) -> None:
    """Drop what stands after the last newline: a line that a crash cut off."""
    size = os.fstat(handle).st_size
    block, end = 1 << 16, size
    while end > 0:
        start = max(0, end - block)
        newline = os.pread(handle, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(handle, end)
