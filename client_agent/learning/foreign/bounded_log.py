"""A program's output in a file of bounded size: the last words are kept, no disk is filled."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LOG_BYTES: Final = 2**20
"""Of each of the two files."""
_READ_BYTES: Final = 2**16
_LOOKS_EVERY_S: Final = 0.1


def put_aside(path: Path) -> Path:
    """Return the path of the file before this one."""
    return path.with_name(f"{path.name}.1")


@contextmanager
def bounded_log(path: Path) -> Iterator[int]:
    """A descriptor for a program to print to, until the block ends; what was said before is forgotten.

    A process that escaped and still holds it afterwards writes to nobody.
    """
    put_aside(path).unlink(missing_ok=True)
    path.write_bytes(b"")
    read, write = os.pipe()
    over = threading.Event()
    copying = threading.Thread(target=_copy, args=(read, path, over), daemon=True)
    copying.start()
    try:
        yield write
    finally:
        os.close(write)
        over.set()
        copying.join()
        os.close(read)


def _copy(read: int, path: Path, over: threading.Event) -> None:
    """Until nobody holds the other end, or it is over and nothing waits."""
    while True:
        ending = over.is_set()
        if select.select([read], [], [], _LOOKS_EVERY_S)[0]:
            said = os.read(read, _READ_BYTES)
            if not said:
                return
            _append(path, said)
        elif ending:
            return


def _append(path: Path, said: bytes) -> None:
    """A disk that is full loses the words, not the round."""
    try:
        if path.stat().st_size + len(said) > LOG_BYTES:
            path.replace(put_aside(path))
        with path.open("ab") as log:
            log.write(said)
    except OSError:
        return
