"""Where tests keep their files: in memory where there is room, or on a disk where it is durability that is tested."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")
_DISK: Final = Path("/var/tmp")
_ENOUGH_BYTES: Final = 4 * 2**30


def in_memory() -> Path | None:
    """A folder whose files are in memory; None where there is none, or little room in it."""
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ENOUGH_BYTES:
        return None
    return _MEMORY


@contextmanager
def folder_on_disk() -> Iterator[Path]:
    """A new folder on a disk, where what is synced has been written; removed in the end."""
    with tempfile.TemporaryDirectory(prefix="moiety-test-", dir=_DISK if _DISK.is_dir() else None) as made:
        yield Path(made)
