"""Files that a person asked for: new ones all or none, a changed one as a whole or as it was before."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from host.durable import write_durably
from protocol.errors import ConfigurationError, StorageFull

_NO_RENAME: Final = frozenset({errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS})
"""A file mounted alone, or a folder in which nothing new may be made."""


def write_new(*files: tuple[Path, str, int]) -> None:
    """Paths, texts and permissions: all of them, or none and nothing left behind. Nothing is overwritten: a lost key
    cannot be made again.

    Raises: ConfigurationError
    """
    written: list[Path] = []
    try:
        for path, text, mode in files:
            _write_one(path, text, mode)
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink()
        raise


def _write_one(path: Path, text: str, mode: int) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise ConfigurationError(f"{path} exists already; choose another place or name") from None
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink()
        raise _unwritable(path, error) from None


def rewrite(path: Path, text: str) -> None:
    """Other content for a file: in its place by a rename; where it is mounted alone, which cannot be renamed over,
    in place, and what was there before is put back when that fails.

    Raises: ConfigurationError, StorageFull; the file is as it was
    """
    try:
        return write_durably(path, text.encode())
    except (OSError, StorageFull) as refused:
        with suppress(OSError):
            path.with_name(path.name + ".tmp").unlink()
        if isinstance(refused, StorageFull):
            raise
        if refused.errno not in _NO_RENAME:
            raise _unwritable(path, refused) from None
    before = path.read_bytes()
    try:
        _write_in_place(path, text.encode())
    except OSError as refused:
        with suppress(OSError):
            _write_in_place(path, before)
        raise _unwritable(path, refused) from None


def _write_in_place(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be written: {error.strerror}; nothing was changed: copy it to a folder in which you may write, "
        "and run this again there"
    )
