"""Files that somebody still has open for writing, as far as the kernel says so."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import signal
from pathlib import Path
from typing import BinaryIO, Final

_SET_LEASE: Final[int | None] = getattr(fcntl, "F_SETLEASE", None)
_SET_SIGNAL: Final[int] = getattr(fcntl, "F_SETSIG", 0)
_HELD_ELSEWHERE: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})


def has_writer(file: BinaryIO) -> bool:
    """Tell whether any process of this machine can still write to ``file``, which is itself open for reading alone.

    The kernel refuses a read lease while a descriptor for writing is open. A network file system refuses it with the
    same error whenever its server grants no lease, so a new file beside ``file`` must get one before a refusal counts.
    False where there are no leases (many network file systems, macOS): the caller needs another way to notice what is
    written later. Raises: OSError, where no file can be made in the folder
    """
    if _SET_LEASE is None or _leased(file, _SET_LEASE):
        return False
    probe = Path(str(file.name)).with_name(f".lease-{secrets.token_hex(16)}")
    os.mknod(probe, 0o600)  # never open for writing, so that no descriptor of it can leak into another process
    try:
        with probe.open("rb", buffering=0) as unwritten:
            return _leased(unwritten, _SET_LEASE)
    finally:
        probe.unlink()


def _leased(file: BinaryIO, set_lease: int) -> bool:
    """True, too, where the kernel or the file system knows no leases; the lease is given back at once."""
    try:
        fcntl.fcntl(file, _SET_SIGNAL, signal.SIGURG)  # who opens it meanwhile breaks the lease: SIGIO would kill us
        fcntl.fcntl(file, set_lease, fcntl.F_RDLCK)
        fcntl.fcntl(file, set_lease, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno not in _HELD_ELSEWHERE
    return True
