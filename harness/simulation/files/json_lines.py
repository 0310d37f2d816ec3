"""Files of JSON lines that survive a crash in the middle of a line; one process writes at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from protocol.errors import ConfigurationError

B = TypeVar("B", bound=BaseModel)
_BLOCK_BYTES = 1 << 16


def read_lines(path: Path, kind: type[B]) -> tuple[B, ...]:
    """Every whole line; a last one that a crash cut off is not there.

    Raises: ConfigurationError for a file that holds something else
    """
    if not path.is_file():
        return ()
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    try:
        return tuple(kind.model_validate_json(line) for line in whole.splitlines())
    except ValidationError as error:
        raise ConfigurationError(
            f"{path} holds a line that is no {kind.__name__}: {error}; give another --out"
        ) from None


def append_line(path: Path, line: BaseModel) -> None:
    """Add a line, on disk before this returns; what a crash left of an earlier one is dropped first."""
    with path.open("ab+") as file:
        _cut_torn_line(file.fileno())
        file.write(line.model_dump_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _cut_torn_line(handle: int) -> None:
    """Cut after the last newline."""
    size = os.fstat(handle).st_size
    end = size
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        newline = os.pread(handle, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(handle, end)
