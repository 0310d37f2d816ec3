"""``--download``: missing public files fetched from where they come from, and kept only if their checksum is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import httpx

from harness.datasets.public_data import PublicFile, digest_of
from host.durable import write_durably
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
        if file.is_repacked:
            raise ConfigurationError(
                f"{path} is missing and cannot be fetched: {file.url} holds it in another form; make {file.origin} "
                "from that, and put it there"
            )
        tell(f"fetching {file.url}")
        raw = _fetched(file)
        found = digest_of(file, raw)
        if found != file.sha256:
            raise ConfigurationError(
                f"{file.url} is not the file that is expected: its content has SHA-256 {found}, expected "
                f"{file.sha256}; nothing was kept: get {path.name} ({file.origin}) elsewhere and put it at {path}"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, raw)


def _fetched(file: PublicFile) -> bytes:
    body = bytearray()
    try:
        asked = {"Accept-Encoding": "identity"}
        with httpx.stream("GET", file.url, headers=asked, follow_redirects=True, timeout=_TIMEOUT_S) as response:
            if not response.is_success:
                raise ConfigurationError(f"{file.url}: the server answers {response.status_code}; {_elsewhere(file)}")
            for piece in response.iter_raw():
                body += piece
                if len(body) > LARGEST_BYTES:
                    raise ConfigurationError(f"{file.url} is longer than {LARGEST_BYTES} bytes: it cannot be the file")
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise ConfigurationError(f"{file.url} cannot be fetched: {reason}; {_elsewhere(file)}") from None
    return bytes(body)


def _elsewhere(file: PublicFile) -> str:
    return f"get it elsewhere ({file.origin}) and put it at {file.path} in the data folder"
