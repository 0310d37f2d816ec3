"""Parts of large contributions whose upload is not complete: each a file, durable before it is acknowledged.

    uploads/STUDY/ROUND-ATTEMPT/SITE/DIGEST/000000, 000001, ...

A site has one upload in an attempt: another digest's first part takes the place of the one before. No row names these
files; they go when the upload is complete, when the next round is announced and when the study ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from host.durable import new_folder, write_durably
from protocol.rounds.states import RoundKey


@dataclass(frozen=True)
class Upload:
    """What a site is sending: a sealed message of ``length`` bytes with this signed digest, hexadecimal."""

    key: RoundKey
    site: str
    digest: str
    length: int


class UploadParts:
    """The folder of all uploads; names of studies are digests, of sites the roster's."""

    def __init__(self, folder: Path, require_room: Callable[[int], None]) -> None:
        self._folder = new_folder(folder)
        self._require_room = require_room

    def paths(self, upload: Upload) -> list[Path]:
        """The parts that are held, from the first one on without a gap."""
        folder = self._of(upload)
        held = sorted(folder.glob("[0-9]" * 6)) if folder.is_dir() else []
        return [path for number, path in enumerate(held) if path.name == _name(number)]

    def held_bytes(self, upload: Upload) -> int:
        return sum(path.stat().st_size for path in self.paths(upload))

    def add(self, upload: Upload, number: int, data: bytes) -> None:
        """Durable when it returns. Raises: StorageFull"""
        self._require_room(len(data))
        if number == 0:
            shutil.rmtree(self._of(upload).parent, ignore_errors=True)
        folder = self._of(upload)
        for place in (folder.parents[2], folder.parents[1], folder.parent, folder):
            new_folder(place)
        write_durably(folder / _name(number), data)

    def pieces(self, upload: Upload) -> Iterator[bytes]:
        """Part by part."""
        return (path.read_bytes() for path in self.paths(upload))

    def drop(self, upload: Upload) -> None:
        """All that this site has sent of the attempt."""
        shutil.rmtree(self._of(upload).parent, ignore_errors=True)

    def keep_only(self, study: str, key: RoundKey | None) -> None:
        """Of the study's uploads those to one attempt stay; None: none."""
        folder = self._folder / study
        for path in list(folder.iterdir()) if folder.is_dir() else []:
            if key is None or path.name != _attempt(key):
                shutil.rmtree(path, ignore_errors=True)

    def studies(self) -> list[str]:
        """Digests of the studies that there are uploads of."""
        return [path.name for path in self._folder.iterdir()]

    def _of(self, upload: Upload) -> Path:
        return self._folder / upload.key.study / _attempt(upload.key) / upload.site / upload.digest


def _attempt(key: RoundKey) -> str:
    return f"{key.round:06d}-{key.attempt:02d}"


def _name(number: int) -> str:
    return f"{number:06d}"
