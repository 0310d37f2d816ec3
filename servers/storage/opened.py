"""A storage from its address in the settings."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from protocol.errors import ConfigurationError
from servers.storage.place import FolderStorage, Storage


def open_storage(url: str) -> Storage:
    """``/path`` or ``file:///path``. Raises: ConfigurationError"""
    parts = urlsplit(url)
    if parts.scheme in ("", "file") and not parts.netloc and parts.path.startswith("/"):
        return FolderStorage(Path(parts.path))
    raise ConfigurationError(f"key 'ray.storage': {url!r} is no absolute path")
