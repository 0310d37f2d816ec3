"""Places for tests' files: in memory where there is room, or on a disk where durability is tested."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

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


@contextmanager
def small_disk(folder: Path, disk_bytes: int) -> Iterator[Path]:
    """A disk of its own at this path, which is made; the test is skipped where nobody may mount one."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={disk_bytes}", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk takes root; the failpoint 'disk_full' of test_crashes.py runs everywhere")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, leave_bytes: int) -> Path:
    """Write zeros until only so much is left, or until nothing more fits."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                free = shutil.disk_usage(disk).free - leave_bytes
                if free <= 0 or file.write(bytes(min(free, 2**20))) == 0:
                    break
        except OSError:
            assert leave_bytes == 0
    return filler
