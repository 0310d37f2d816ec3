"""Storage for files that several machines read: a folder that all of them see, or an object store."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol

from host.files import sync_folder
from protocol.errors import ProtocolViolation, Unavailable

UNFINISHED: Final = ".unfinished"


class Storage(Protocol):
    """Immutable files by name; what is there under a name is whole and durable."""

    ahead_bytes: int
    """How much is worth reading at once where less is asked for."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Bytes from ``offset`` on, fewer than ``size`` only where the file ends.

        Raises: ProtocolViolation, when there is no such file; Unavailable, when the storage does not answer
        """
        ...

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Raises: Unavailable"""
        ...

    def take_in(self, file: Path, name: str) -> None:
        """Keep a file of this machine's disk, which is gone from there afterwards. Raises: Unavailable"""
        ...

    def delete(self, names: Collection[str]) -> None: ...

    def names(self) -> list[str]: ...


class FolderStorage:
    """A folder of this machine, or one that all machines mount at the same path."""

    ahead_bytes = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def read(self, name: str, offset: int, size: int) -> bytes:
        try:
            with (self.folder / name).open("rb", buffering=0) as file:
                file.seek(offset)
                return file.read(size)
        except FileNotFoundError:
            raise gone(name) from None
        except OSError as error:
            raise silent(error) from None

    def write(self, name: str, data: bytes | memoryview) -> None:
        draft = self.folder / f"{secrets.token_hex(16)}{UNFINISHED}"
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self._keep(draft, name)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise silent(error) from None

    def take_in(self, file: Path, name: str) -> None:
        draft = self.folder / f"{secrets.token_hex(16)}{UNFINISHED}"
        try:
            if file.stat().st_dev == self.folder.stat().st_dev:
                self._keep(file, name)
                return
            with file.open("rb") as source, draft.open("xb") as target:
                shutil.copyfileobj(source, target, 2**20)
                target.flush()
                os.fsync(target.fileno())
            self._keep(draft, name)
            file.unlink()
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise silent(error) from None

    def delete(self, names: Collection[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]

    def _keep(self, draft: Path, name: str) -> None:
        draft.replace(self.folder / name)
        sync_folder(self.folder)


def gone(name: str) -> ProtocolViolation:
    return ProtocolViolation(f"the storage has no file {name[:24]} (any more); its round is over, or look at the disk")


def silent(error: Exception) -> Unavailable:
    """Names of files and addresses stay out of what is said: they are in the operator's settings."""
    return Unavailable(f"the storage does not answer ({type(error).__name__}); look at it, then it goes on by itself")
