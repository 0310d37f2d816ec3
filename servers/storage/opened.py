"""A storage from its address in the settings."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from protocol.errors import ConfigurationError
from servers.storage.place import FolderStorage, Storage
from servers.storage.remote import RemoteStorage


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
