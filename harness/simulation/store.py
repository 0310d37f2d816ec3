"""The folder of a case's results: ``results.jsonl``, one line a finished run, and checkpoints of the others."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from harness.simulation.case import Case
from harness.simulation.files.code_digest import require_same_code
from harness.simulation.files.json_lines import append_line, read_lines
from harness.simulation.runs import RunKey, RunLine
from protocol.errors import ConfigurationError

RESULTS: Final = "results.jsonl"
PARTIAL: Final = "partial"


class Results:
    """What a folder holds; the folder is made when it is first held."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / RESULTS

    @property
    def partial(self) -> Path:
        """Where the checkpoints of unfinished runs are."""
        return self.folder / PARTIAL

    def lines(self) -> tuple[RunLine, ...]:
        """Every finished run. Raises: ConfigurationError for a file that is no results file"""
        return read_lines(self._path, RunLine)

    def append(self, line: RunLine) -> None:
        """Add a finished run, on disk before this returns."""
        append_line(self._path, line)

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

    Raises: ConfigurationError when a line comes from this case as it was before a change, or with other protection, or
            from other code
    """
    done: dict[RunKey, RunLine] = {}
    for line in lines:
        if line.case != case.name:
            raise ConfigurationError(f"{folder} holds runs of {line.case!r}, not of {case.name!r}: give another --out")
        if line.protection != protection:
            raise ConfigurationError(
                f"{folder} holds runs with --protection {line.protection}, now it is {protection}: give another --out"
            )
        require_same_code(line.code_digest, folder)
        if line.variant in case.names:
            require_unchanged(line.study_digest, case, line.variant, folder)
        done[line.key] = line
    return done


def require_unchanged(digest: str, case: Case, variant: str, folder: Path) -> None:
    """Raises: ConfigurationError when ``digest`` was made before the variant was changed"""
    if digest != case.variant(variant).digest:
        raise ConfigurationError(
            f"{case.source}: variant {variant!r} is not what it was when the runs in {folder} were made, and two "
            "studies are not mixed in one table: give another --out, or undo the change"
        )
