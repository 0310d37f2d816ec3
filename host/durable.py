"""Files that survive a power cut: written beside their name, synced, renamed, the folder synced."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from protocol.errors import StorageFull

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def write_durably(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: afterwards the old or the new content is there, never a part."""
    write_pieces(path, (data,))


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> int:
    """As ``write_durably``, piece by piece; returns the number of bytes.

    Raises: StorageFull
    """
    with replacing(path) as file:
        return sum(file.write(piece) for piece in pieces)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, in any order; it takes the place of ``path`` durably when the block ends without an error.

    Raises: StorageFull
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        if is_full(error):
            raise StorageFull(f"no space left for {path.name}: free space on this machine's disk") from None
        raise


def is_full(error: OSError) -> bool:
    """Whether a file could not be written because the disk, or what a user or a file may take of it, is full."""
    return error.errno in _FULL


def sync_folder(folder: Path) -> None:
    """Make a rename or a new name in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def new_folder(folder: Path) -> Path:
    """Create ``folder`` (and its parents), readable by the owner only."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        sync_folder(folder.parent)
    return folder


def append_durably(path: Path, line: bytes) -> None:
    """Add to a file whose lines are never changed; on disk when this returns. Raises: StorageFull"""
    try:
        fresh = not path.exists()
        with path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            sync_folder(path.parent)
    except OSError as error:
        if is_full(error):
            raise StorageFull(f"no space left for {path.name}: free space on this machine's disk") from None
        raise
