"""Public data files: where they are looked for, whether they are the right ones, and where they come from."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.errors import ConfigurationError

DATA_VARIABLE: Final = "MOIETY_DATA"


@dataclass(frozen=True)
class PublicFile:
    """A file of a public data set.

    ``path`` is below the data folder, ``sha256`` of the content (of what a ``.gz`` holds, since packing it again
    changes its bytes), ``origin`` says in words whose data it is, and ``url`` is where ``--download`` gets it.
    """

    path: str
    sha256: str
    origin: str
    url: str

    @property
    def is_packed(self) -> bool:
        return self.path.endswith(".gz")

    def below(self, folder: Path) -> Path:
        return folder / self.path


def data_folder(given: Path | None) -> Path:
    """The folder with the data sets: ``--data``, or the environment's MOIETY_DATA. Raises: ConfigurationError"""
    chosen = given or (Path(os.environ[DATA_VARIABLE]) if os.environ.get(DATA_VARIABLE) else None)
    if chosen is None:
        raise ConfigurationError(
            f"this study needs public data: give their folder with --data, or set {DATA_VARIABLE}; with --download "
            "missing files are fetched into it"
        )
    return chosen


def content(file: PublicFile, folder: Path) -> bytes:
    """What the file holds, unpacked and compared with its checksum.

    Raises: ConfigurationError that says which file, where it comes from and where to put it
    """
    path = file.below(folder)
    if not path.is_file():
        raise ConfigurationError(
            f"{path} is missing: it belongs to {file.origin}; get it from {file.url} and put it there, or run again "
            "with --download"
        )
    packed = path.read_bytes()
    found = unpacked_digest(file, packed)
    if found != file.sha256:
        raise ConfigurationError(
            f"{path} is not the file that is expected: its content has SHA-256 {found}, expected {file.sha256}; get "
            f"it again from {file.url}"
        )
    return gzip.decompress(packed) if file.is_packed else packed


def unpacked_digest(file: PublicFile, packed: bytes) -> str:
    """SHA-256 of what ``packed`` holds, or a word that is no checksum where it cannot be unpacked."""
    try:
        return hashlib.sha256(gzip.decompress(packed) if file.is_packed else packed).hexdigest()
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return "none (it is no gzip file)"
