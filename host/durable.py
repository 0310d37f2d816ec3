"""Files that survive a power cut: written beside their name, synced, renamed, the folder synced."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
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
    with replacing_together(path) as (file,):
        yield file


@contextmanager
def replacing_together(*paths: Path, folder_synced: bool = True) -> Iterator[tuple[BinaryIO, ...]]:
    """Files of one folder to write; all take their places, in this order, when the block ends without an error.

    A process that is killed leaves the first few in place, whole. A power cut before the block has ended may leave any
    of them: whoever takes the last for the word that all are there looks whether they are. ``folder_synced``: False
    where another file of this folder, or a folder in it, is made durable before anything rests on these.

    Raises: StorageFull
    """
    temporary = [f"{path}.tmp" for path in paths]
    try:
        with ExitStack() as stack:
            files = tuple(stack.enter_context(open(one, "wb")) for one in temporary)
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        for one, path in zip(temporary, paths, strict=True):
            os.replace(one, path)
        if folder_synced:
            sync_folder(paths[0].parent)
    except BaseException as error:
        for one in temporary:  # a full disk gets back what it took
            with suppress(OSError):
                os.unlink(one)
        if isinstance(error, OSError) and is_full(error):
            names = ", ".join(path.name for path in paths)
            raise StorageFull(f"no space left for {names}: free space on this machine's disk") from None
        raise


def is_full(error: OSError) -> bool:
    """Return whether a file could not be written because the disk, or what a user or a file may take of it, is full."""
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
        try:
            sync_folder(folder.parent)
        except OSError:
            with suppress(OSError):
                folder.rmdir()  # so that whoever asks again has it synced
            raise
    return folder


def append_durably(path: Path, line: bytes) -> None:
    """Add to a file whose lines are never changed, also beside another process; on disk when this returns.

    Half a line that a crash left at the end is cut off first. Raises: StorageFull; then nothing of the line is there
    """
    try:
        with path.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            add_line(file, line, end_of_lines(file))
    except OSError as error:
        if is_full(error):
            raise StorageFull(f"no space left for {path.name}: free space on this machine's disk") from None
        raise


def add_line(file: FileIO, line: bytes, end_bytes: int) -> None:
    """Write behind a file's first ``end_bytes``, durably. Raises: OSError; then the file ends there as before"""
    try:
        if os.fstat(file.fileno()).st_size != end_bytes:
            file.truncate(end_bytes)
        _write_whole(file, line)
        os.fsync(file.fileno())
        if end_bytes == 0:  # its name is new, or its folder could not be synced before
            sync_folder(Path(file.name).parent)
    except OSError:
        with suppress(OSError):
            file.truncate(end_bytes)
        raise


def _write_whole(file: FileIO, line: bytes) -> None:
    """Raises: OSError, where only a part had room"""
    if file.write(line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def end_of_lines(file: FileIO) -> int:
    """Bytes up to the last line's end; what is behind it is half a line that a crash left."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, size_bytes - 1))
    if file.read(1) in (b"", b"\n"):
        return size_bytes
    file.seek(0)
    return file.readall().rfind(b"\n") + 1
