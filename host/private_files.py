"""Files and folders that only this process's user may read; what others could read is refused, not used."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from host.text_files import text_of
from host.unreadable import why_unreadable
from protocol.errors import ConfigurationError

_OTHERS: Final = 0o077
_GROUP_READS: Final = 0o040
_ROOT: Final = 0
_OWNER_ONLY: Final = 0o700
UMASK: Final = 0o077
"""For the whole process: whatever it makes is its user's alone."""


def read_secret(path: Path) -> str:
    """A secret text file's content. Raises: ConfigurationError, when it cannot be read, or others may read it"""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            text = text_of(file.read())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {why_unreadable(path, error)}") from None
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS & ~_lent(found.st_uid, os.geteuid()):
        raise ConfigurationError(
            f"{path}: others than its owner may use this secret (mode {mode:04o}): chmod 600 {path}, and make new "
            "keys if others could have read it"
        )
    return text


def _lent(owner: int, user: int) -> int:
    """The bits that are no fault: root lends a file through its group to a user that is not root, as Kubernetes mounts
    secrets and as PostgreSQL allows it for its keys. Root could read it anyway.
    """
    return _GROUP_READS if owner == _ROOT != user else 0


def private_folder(folder: Path) -> None:
    """Make it, or take it back from others. Raises: ConfigurationError"""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=_OWNER_ONLY)
        if stat.S_IMODE(folder.stat().st_mode) & _OTHERS:
            folder.chmod(_OWNER_ONLY)
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: cannot be made this user's alone: {error.strerror}; give it to this user and chmod 700 it"
        ) from None


def take_back(files: list[Path]) -> None:
    """Make files private that an earlier version may have left readable."""
    for path in files:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OTHERS)
