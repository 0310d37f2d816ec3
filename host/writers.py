"""Files that somebody still has open for writing, as far as the kernel says so."""

from __future__ import annotations

import errno
import fcntl
import signal
from typing import BinaryIO, Final

_SET_LEASE: Final[int | None] = getattr(fcntl, "F_SETLEASE", None)
_SET_SIGNAL: Final[int] = getattr(fcntl, "F_SETSIG", 0)
_HELD_ELSEWHERE: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})


def has_writer(file: BinaryIO) -> bool:
    """Whether any process of this machine can still write to ``file``, which is itself open for reading alone.

    The kernel refuses a read lease while a descriptor for writing is open; the lease is given back at once. False where
    the kernel or the file system knows no leases (network file systems, macOS): the caller needs another way to notice
    what is written later.
    """
    if _SET_LEASE is None:
        return False
    try:
        fcntl.fcntl(file, _SET_SIGNAL, signal.SIGURG)  # who opens it meanwhile breaks the lease: SIGIO would kill us
        fcntl.fcntl(file, _SET_LEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, _SET_LEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno in _HELD_ELSEWHERE
    return False
