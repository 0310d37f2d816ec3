"""A folder that lasts is one process's at a time and one party's for ever: a lock, and a file that says whose it is.

The lock is flock(2) on the file ``lock``, which ends with the process however that ends. On one machine, containers
included, it always holds; over NFS it holds between machines where the mount passes locks on, over a file system that
cannot lock nothing starts. SQLite asks for a local disk anyway (docs/operating.md).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import RawIOBase
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from host.files import is_full, private_folder, write_durably
from protocol.errors import ConfigurationError, StorageFull

LOCK: Final = "lock"
PROCESSES: Final = "processes"
_ONE_AT_A_TIME: Final = "one_at_a_time"
OWNER: Final = "owner.json"
_HELD: Final = frozenset({errno.EWOULDBLOCK, errno.EACCES})
_SHOWN_BYTES: Final = 400
_ANOTHER_FOLDER: Final = "give this one a folder of its own"
_ANOTHER_NAME: Final = "give this one another port, or its machine another name: processes of one server differ in them"


@dataclass(frozen=True)
class Owner:
    """The owner of a folder or database: kind of process (``server a``, ``site``), party, key, and place."""

    kind: str
    name: str
    key_id: str
    federation: str = ""

    def __str__(self) -> str:
        where = f" in federation {self.federation!r}" if self.federation else ""
        return f"{self.kind} {self.name!r} with key {self.key_id}{where}"


@contextmanager
def one_process(folder: Path, setting: str, who: str) -> Iterator[None]:
    """While the block runs no other process enters it for this folder, which is made if need be.

    Raises: ConfigurationError that names ``setting``, and who holds it; StorageFull
    """
    with _held(folder, setting, lambda file: _take(file, folder, setting, who)):
        yield


@contextmanager
def one_of_several(folder: Path, setting: str, who: str, name: str) -> Iterator[None]:
    """While the block runs no process has the folder for itself, and no other one is there under this name.

    Raises: as :func:`one_process`
    """

    def share(file: RawIOBase) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigurationError(f"key '{setting}': {_refusal(folder, error)}") from None

    with _held(folder, setting, share):
        private_folder(folder / PROCESSES)
        own = folder / PROCESSES / name
        with _held(own, setting, lambda file: _take(file, own, setting, who, _ANOTHER_NAME)):
            yield


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Run this block in one process at a time of those that share a folder; the others wait."""
    with (folder / _ONE_AT_A_TIME).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _held(folder: Path, setting: str, take: Callable[[RawIOBase], None]) -> Iterator[None]:
    private_folder(folder)
    with ExitStack() as stack:
        try:
            take(stack.enter_context((folder / LOCK).open("a+b", buffering=0)))
        except OSError as error:
            if not is_full(error):
                raise ConfigurationError(f"key '{setting}': {folder} cannot be used: {error.strerror}") from None
            raise StorageFull(f"key '{setting}': no space left in {folder}: free space, and start this again") from None
        yield


def _take(file: RawIOBase, folder: Path, setting: str, who: str, otherwise: str = _ANOTHER_FOLDER) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigurationError(f"key '{setting}': {_refusal(folder, error, otherwise)}") from None
    file.truncate(0)
    began = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    file.write(f"{who}, process {os.getpid()} on {socket.gethostname()}, since {began}".encode())


def holder_of(folder: Path) -> str | None:
    """Return the folder's holder, in the words that it wrote into the lock; None where nobody holds it.

    Of several processes that share it, one of them.
    """
    try:
        with (folder / LOCK).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go of with the file, at once
            except OSError as error:
                if error.errno not in _HELD:
                    return None
                return file.read(_SHOWN_BYTES).decode(errors="replace") or "another process"
    except OSError:
        return None
    return _holder_of_several(folder)


def _holder_of_several(folder: Path) -> str | None:
    found = (holder_of(path) for path in sorted((folder / PROCESSES).glob("*")))
    return next((holder for holder in found if holder is not None), None)


def _refusal(folder: Path, error: OSError, otherwise: str = _ANOTHER_FOLDER) -> str:
    if error.errno not in _HELD:
        return f"{folder} is on a file system that cannot lock ({error.strerror}); put it on a disk of this machine"
    said = (folder / LOCK).read_bytes()[:_SHOWN_BYTES].decode(errors="replace")
    holder = _holder_of_several(folder) or said or "another process"
    return f"{folder} is in use by {holder}; stop that one, or {otherwise}"


def require_owner(folder: Path, setting: str, owner: Owner, otherwise: str, *, former: Collection[Owner] = ()) -> None:
    """The folder becomes ``owner``'s the first time, and is nobody else's from then on; ``otherwise`` says what to do.

    ``former``: the same party as it was named before, whose folder it may be too.

    Raises: ConfigurationError
    """
    path = folder / OWNER
    if not path.exists():
        write_durably(path, TypeAdapter(Owner).dump_json(owner) + b"\n")
        return
    try:
        known = TypeAdapter(Owner).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not what was written"
        raise ConfigurationError(f"{path} cannot be read ({said}); restore it from a backup of the folder") from None
    if known != owner and known not in former:
        raise ConfigurationError(f"key '{setting}': {folder} belongs to {known}; this is {owner}: {otherwise}")
