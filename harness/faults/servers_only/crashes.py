"""Crashes between two steps, and what a power cut leaves of files: what was not synced is not there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from unittest import mock

from host.failpoints import Failpoints
from protocol.sharing import Side


class Died(BaseException):
    """A server is no more: nobody catches this."""


class Reaching(Failpoints):
    """Counts a server's steps through all of its starts; ``at`` hears of each."""

    def __init__(self, side: Side, at: Callable[[Side, str, int], None], counted: Counter[tuple[Side, str]]) -> None:
        super().__init__()
        object.__setattr__(self, "_heard", (side, at, counted))

    def reach(self, point: StrEnum) -> None:
        side, at, counted = self._heard  # type: ignore[attr-defined]  # a frozen class's own
        number = counted[side, point.value]
        counted[side, point.value] += 1
        at(side, point.value, number)


class PowerCut:
    """Knows which files' bytes and which folders' names have reached the disk."""

    def __init__(self) -> None:
        self._files: set[tuple[int, int]] = set()
        self._names: dict[str, set[str]] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        with mock.patch("os.fsync", self._before(os.fsync)):
            yield

    def _before(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def fsync(handle: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            sync(handle)
            if path.is_dir():
                self._names[str(path)] = {one.name for one in path.iterdir()}
            else:
                found = os.fstat(handle)
                self._files.add((found.st_dev, found.st_ino))

        return fsync

    def cut(self, folder: Path) -> None:
        """What is left in a folder of whole files."""
        names = self._names.get(str(folder), set())
        for file in folder.iterdir() if folder.is_dir() else ():
            found = file.stat()
            if file.name not in names:
                file.unlink()
            elif (found.st_dev, found.st_ino) not in self._files:
                file.write_bytes(b"")
