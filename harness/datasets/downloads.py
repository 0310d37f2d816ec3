"""``--download``: missing public files fetched from where they come from, and kept only if their checksum is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import httpx

from client_agent.durable import write_durably
from harness.datasets.public_data import PublicFile, unpacked_digest
from protocol.errors import ConfigurationError

_TIMEOUT_S: Final = 60.0
LARGEST_BYTES: Final = 1 << 30


def fetch_missing(files: Sequence[PublicFile], folder: Path, tell: Callable[[str], None]) -> None:
    """Fetch every file of ``files`` that is not below ``folder``; one that is there is left as it is.

    Raises: ConfigurationError when a file cannot be fetched, or is another one than expected; it is not kept
    """
    for file in files:
        path = file.below(folder)
        if path.is_file():
            continue
        tell(f"fetching {file.url}")
        packed = _fetched(file)
        found = unpacked_digest(file, packed)
        if found != file.sha256:
            raise ConfigurationError(
                f"{file.url} is not the file that is expected: its content has SHA-256 {found}, expected "
                f"{file.sha256}; nothing was kept: get {path.name} ({file.origin}) elsewhere and put it at {path}"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, packed)


def _fetched(file: PublicFile) -> bytes:
    body = bytearray()
    try:
        asked = {"Accept-Encoding": "identity"}
        with httpx.stream("GET", file.url, headers=asked, follow_redirects=True, timeout=_TIMEOUT_S) as response:
            response.raise_for_status()
            for piece in response.iter_raw():
                body += piece
                if len(body) > LARGEST_BYTES:
                    raise ConfigurationError(f"{file.url} is longer than {LARGEST_BYTES} bytes: it cannot be the file")
    except httpx.HTTPError as error:
        raise ConfigurationError(
            f"{file.url} cannot be fetched: {error or type(error).__name__}; get {file.origin} elsewhere and put it at "
            f"{file.path} in the data folder"
        ) from None
    return bytes(body)
