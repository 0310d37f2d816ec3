"""Memory with a path, for a library that saves and loads files only (docs/protocol.md 11)."""

from __future__ import annotations

import os


class MemoryFile:
    """An anonymous file in memory (Linux): no disk, no name that another process could open."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("moiety")

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self._descriptor}"

    def read(self) -> bytes:
        """All that was written last."""
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def write(self, data: bytes) -> None:
        """Replace what is there; its memory is used again."""
        os.pwrite(self._descriptor, data, 0)
        os.ftruncate(self._descriptor, len(data))

    def close(self) -> None:
        os.close(self._descriptor)
