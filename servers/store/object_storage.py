"""Storage for files that several machines read: a folder that all of them see, or an object store.

Who runs it sees names, sizes and times; what lies there is encrypted, or masked. Keys of the store come from where
fsspec's driver takes them: the environment, or the machine's role.
"""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from host.files import sync_folder
from protocol.errors import ConfigurationError, ProtocolViolation, Unavailable

UNFINISHED: Final = ".unfinished"


class Storage(Protocol):
    """Immutable files by name; what is there under a name is whole and durable."""

    ahead_bytes: int
    """The length that is worth reading at once where less is asked for."""

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


_AHEAD_BYTES: Final = 2**22


class RemoteStorage:
    """Raises: ConfigurationError, where fsspec or its driver for the address is not installed"""

    ahead_bytes = _AHEAD_BYTES
    """A request takes as long as a megabyte: so much is read at once."""

    def __init__(self, url: str) -> None:
        scheme = url.split(":", maxsplit=1)[0]
        try:
            fsspec = importlib.import_module("fsspec")
            self._files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(
                f"key 'ray.storage': {scheme}:// needs fsspec and its driver (for s3: pip install s3fs): {error}"
            ) from None
        self._root = root.rstrip("/")

    def read(self, name: str, offset: int, size: int) -> bytes:
        try:
            return bytes(self._files.cat_file(self._path(name), start=offset, end=offset + size))
        except FileNotFoundError:
            raise gone(name) from None
        except Exception as error:
            raise silent(error) from None

    def write(self, name: str, data: bytes | memoryview) -> None:
        try:
            self._files.pipe_file(self._path(name), bytes(data))
        except Exception as error:
            raise silent(error) from None

    def take_in(self, file: Path, name: str) -> None:
        try:
            self._files.put_file(str(file), self._path(name))
        except Exception as error:
            raise silent(error) from None
        file.unlink()

    def delete(self, names: Collection[str]) -> None:
        """Raises: Unavailable"""
        for name in names:
            try:
                self._files.rm_file(self._path(name))
            except FileNotFoundError:
                continue
            except Exception as error:
                raise silent(error) from None

    def names(self) -> list[str]:
        try:
            self._files.invalidate_cache()
            found = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise silent(error) from None
        return [str(path).rsplit("/", 1)[-1] for path in found]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def open_storage(url: str) -> Storage:
    """``/path``, ``file:///path``, or an address of fsspec's: ``s3://bucket/prefix``. Raises: ConfigurationError"""
    parts = urlsplit(url)
    if parts.scheme in ("", "file") and not parts.netloc and parts.path.startswith("/"):
        return FolderStorage(Path(parts.path))
    if parts.scheme not in ("", "file"):
        return RemoteStorage(url)
    raise ConfigurationError(
        f"key 'ray.storage': {url!r} is no absolute path, and no address such as s3://bucket/prefix"
    )
