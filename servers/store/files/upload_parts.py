"""Large contributions whose upload is not complete: each a folder, durable as far as it is acknowledged.

    uploads/STUDY/ROUND-ATTEMPT/SITE/DIGEST/    what ``share_in_parts`` keeps

A site has one upload in an attempt: another digest's takes the place of the one before, which is closed for good: a
part of it that is still on its way is refused. No row names these files; they go when the upload is complete, when the
next round is announced and when the study ends.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from host.files import new_folder
from protocol.rounds.states import RoundKey
from servers.store.files.share_in_parts import Awaited, ShareInParts


@dataclass(frozen=True)
class Upload:
    """An upload: a sealed message of ``length`` bytes with this signed digest, hexadecimal."""

    key: RoundKey
    site: str
    digest: str
    length: int


class UploadParts:
    """The folder of all uploads; names of studies are digests, of sites the roster's."""

    def __init__(self, folder: Path, after_piece: Callable[[], None] = lambda: None) -> None:
        self._folder = new_folder(folder)
        self._after_piece = after_piece
        self._open: dict[Upload, ShareInParts] = {}
        # a folder's next object waits for one that was given up and is still at work
        self._turns: WeakValueDictionary[Upload, threading.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()

    def share(self, upload: Upload, awaited: Awaited) -> ShareInParts:
        """As far as it has come, after a restart too; anew, where another process has taken its folder away.

        Blocks: for threads, where it was not asked for before; the event loop waits for the same lock, so that nothing
        is read or opened here.
        """
        with self._lock:
            found, folder = self._open.get(upload), self._of(upload)
            if found is None or not folder.is_dir():
                if not folder.is_dir():
                    self._forget(folder.parent)
                for place in (folder.parents[2], folder.parents[1], folder.parent, folder):
                    new_folder(place)
                turns = self._turns.setdefault(upload, threading.Lock())
                found = self._open[upload] = ShareInParts(folder, awaited, self._after_piece, turns)
            return found

    def begun(self, upload: Upload) -> bool:
        """Return whether any of it may be here."""
        return self._of(upload).is_dir()

    def drop(self, upload: Upload) -> None:
        """All that this site has sent of the attempt."""
        with self._lock:
            self._forget(self._of(upload).parent)

    def keep_only(self, study: str, key: RoundKey | None) -> None:
        """Keep, of the study's uploads, those to one attempt; None: none."""
        folder = self._folder / study
        with self._lock:  # whose folder another process may have taken away
            for upload in [one for one in self._open if one.key.study == study and one.key != key]:
                self._open.pop(upload).close()
        for path in list(folder.iterdir()) if folder.is_dir() else []:
            if key is None or path.name != _attempt(key):
                with self._lock:
                    self._forget(path)

    def studies(self) -> list[str]:
        """Digests of the studies that there are uploads of."""
        return [path.name for path in self._folder.iterdir()]

    def _forget(self, folder: Path) -> None:
        """Everything below ``folder``."""
        for upload in [upload for upload in self._open if folder in self._of(upload).parents]:
            self._open.pop(upload).close()
        shutil.rmtree(folder, ignore_errors=True)

    def _of(self, upload: Upload) -> Path:
        return self._folder / upload.key.study / _attempt(upload.key) / upload.site / upload.digest


def _attempt(key: RoundKey) -> str:
    return f"{key.round:06d}-{key.attempt:02d}"
