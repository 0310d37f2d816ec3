"""An object store, or whatever else fsspec reads by byte range, as a storage: ``s3://bucket/prefix`` and the like.

Who runs it sees names, sizes and times; what lies there is encrypted, or masked. Keys of the store come from where
fsspec's driver takes them: the environment, or the machine's role.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Final

from protocol.errors import ConfigurationError
from servers.storage.place import gone, silent

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
