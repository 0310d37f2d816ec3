"""A file's bytes piece by piece; whoever has other things to do asks first whether the next one needs the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Self

PIECE_BYTES: Final = 2**18
_WITHOUT_WAITING: Final = getattr(os, "RWF_NOWAIT", None)


class FilePieces(Iterator[memoryview]):
    """Read once, from the beginning; opened when the first piece is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._size_bytes = 0
        self._at = 0
        self._held: memoryview | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> memoryview:
        """Waits for the disk. Raises: FileNotFoundError"""
        held = self._read() if self._held is None else self._held
        if not held:
            self._end(held)
            raise StopIteration
        self._held = None
        self._at += len(held)
        return held

    def at_hand(self) -> bool:
        """Return whether the next piece is in memory and waits for nothing; unknown for a file that is not open yet."""
        if self._held is None and self._file is not None and _WITHOUT_WAITING is not None:
            room = memoryview(bytearray(min(PIECE_BYTES, self._size_bytes - self._at)))
            try:
                found = os.preadv(self._file.fileno(), [room], self._at, _WITHOUT_WAITING) if room else 0
            except OSError:  # on its way from the disk, or a file system that cannot say so
                return False
            self._held = room if found == len(room) else None
        return self._held is not None

    def _read(self) -> memoryview:
        if self._file is None:
            self._file = self._path.open("rb", buffering=0)
            self._size_bytes = os.fstat(self._file.fileno()).st_size
        return memoryview(os.pread(self._file.fileno(), PIECE_BYTES, self._at))

    def _end(self, nothing: memoryview) -> None:
        self._held = nothing
        self.__del__()

    def __del__(self) -> None:
        """Also of an answer that nobody took to its end."""
        if self._file is not None:
            self._file.close()
