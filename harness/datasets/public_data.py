"""Public data files: where they are looked for, whether they are the right ones, and how they are fetched."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from host.files import write_durably
from protocol.errors import ConfigurationError

DATA_VARIABLE: Final = "MOIETY_DATA"


@dataclass(frozen=True)
class PublicFile:
    """A file of a public data set.

    ``path`` is below the data folder, ``origin`` says in words whose data it is, and ``url`` is where ``--download``
    gets it. ``sha256`` is of the content: of what a ``.gz`` holds, since packing it again changes its bytes; of a table
    (``is_table``) with newlines for line ends and without byte-order mark and empty rows, in which copies differ.
    What lies at the ``url`` of a file that ``is_repacked`` has another form: ``--download`` cannot get it.
    """

    path: str
    sha256: str
    origin: str
    url: str
    is_table: bool = False
    is_repacked: bool = False

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
    """Return the file's content, unpacked and compared with its checksum.

    Raises: ConfigurationError that says which file, where it comes from and where to put it
    """
    path = file.below(folder)
    if not path.is_file():
        again = "" if file.is_repacked else ", or run again with --download"
        raise ConfigurationError(
            f"{path} is missing: it belongs to {file.origin}; get it from {file.url} and put it there{again}"
        )
    raw = path.read_bytes()
    found = digest_of(file, raw)
    if found != file.sha256:
        raise ConfigurationError(
            f"{path} is not the file that is expected: its content has SHA-256 {found}, expected {file.sha256}; get "
            f"it again from {file.url}"
        )
    return _payload(file, raw)


def digest_of(file: PublicFile, raw: bytes) -> str:
    """SHA-256 of what the file's bytes hold, or a word that is no checksum where they cannot be unpacked."""
    try:
        return hashlib.sha256(_payload(file, raw)).hexdigest()
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return "none (it is no gzip file)"


def _payload(file: PublicFile, raw: bytes) -> bytes:
    if file.is_packed:
        return gzip.decompress(raw)
    if not file.is_table:
        return raw
    lines = raw.removeprefix(codecs.BOM_UTF8).replace(b"\r", b"").split(b"\n")
    return b"".join(line + b"\n" for line in lines if line.strip(b","))


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
