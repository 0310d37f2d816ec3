"""Files of stored shares: written, synced, renamed, and read piece by piece."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from host.failpoints import Failpoints
from host.files import is_full, sync_folder
from protocol.errors import StorageFull
from servers.failpoints import Point
from servers.store.chunk_tags import Layout, Tagger
from servers.store.object_storage import Storage

PIECE_BYTES: Final = 2**18
_WITHOUT_WAITING: Final = getattr(os, "RWF_NOWAIT", None)


class FilePieces(Iterator[memoryview]):
    """Read once, from the beginning; opened when the first piece is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._size_bytes = 0
        self._at = 0
        self._held: memoryview | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> memoryview:
        """Waits for the disk. Raises: FileNotFoundError"""
        held = self._read() if self._held is None else self._held
        if not held:
            self._end(held)
            raise StopIteration
        self._held = None
        self._at += len(held)
        return held

    def at_hand(self) -> bool:
        """Return whether the next piece is in memory and waits for nothing; unknown for a file that is not open yet."""
        if self._held is None and self._file is not None and _WITHOUT_WAITING is not None:
            room = memoryview(bytearray(min(PIECE_BYTES, self._size_bytes - self._at)))
            try:
                found = os.preadv(self._file.fileno(), [room], self._at, _WITHOUT_WAITING) if room else 0
            except OSError:  # on its way from the disk, or a file system that cannot say so
                return False
            self._held = room if found == len(room) else None
        return self._held is not None

    def _read(self) -> memoryview:
        if self._file is None:
            self._file = self._path.open("rb", buffering=0)
            self._size_bytes = os.fstat(self._file.fileno()).st_size
        return memoryview(os.pread(self._file.fileno(), PIECE_BYTES, self._at))

    def _end(self, nothing: memoryview) -> None:
        self._held = nothing
        self.__del__()

    def __del__(self) -> None:
        """Also of an answer that nobody took to its end."""
        if self._file is not None:
            self._file.close()


_UNFINISHED: Final = ".unfinished"


class ShareFiles:
    """A folder of immutable files, named by what they are and by the digest of what they hold."""

    def __init__(
        self,
        folder: Path,
        reserve_bytes: int,
        failpoints: Failpoints | None = None,
        storage: Storage | None = None,
    ) -> None:
        """``storage``: where shares lie that workers on other machines read; None: with all else in ``folder``."""
        self._folder = folder
        self._failpoints = failpoints or Failpoints()
        self._reserve_bytes = reserve_bytes
        self._storage = storage
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, name: str) -> Path:
        return self._folder / name

    def free_bytes(self) -> int:
        return shutil.disk_usage(self._folder).free

    def require_room(self, size_bytes: int) -> None:
        """Raises: StorageFull, when the disk could not hold so many more bytes and the reserve"""
        free = self.free_bytes()
        if free < size_bytes + self._reserve_bytes:
            raise StorageFull(
                f"{size_bytes} bytes are to be stored, {max(free - self._reserve_bytes, 0)} are free; nothing was "
                "stored: tell the server's operator, and send the same bytes again later"
            )

    def draft(self, *midway: Point) -> Draft:
        """A new file that no row names yet; the points ``midway`` are reached after every piece."""
        return Draft(self._folder, self._failpoints, midway, self.require_room)

    def also(self, path: Path, name: str) -> None:
        """A durable file that lies elsewhere on the same disk, under a name here too, or instead.

        One that has the name already has this content, since names are random; whoever gave it the name may not have
        synced the folder.
        """
        here = self.path(name)
        try:
            here.hardlink_to(path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            if not here.exists():
                path.rename(here)
        sync_folder(self._folder)

    def delete(self, names: Collection[str]) -> None:
        for name in names:
            self.path(name).unlink(missing_ok=True)
        if self._storage is not None:
            self._storage.delete(names)

    def sweep(self, named: Collection[str]) -> int:
        """At start: delete what a crash left behind, files that no row names. -> how many"""
        strays = [path for path in self._folder.iterdir() if path.name not in named]
        for path in strays:
            path.unlink()
        return len(strays)

    def written(self) -> dict[str, float]:
        """Every file, drafts too, and when it was last written to."""
        found: dict[str, float] = {}
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                found[path.name] = path.stat().st_mtime
        return found

    def read(self, name: str) -> FilePieces:
        """The file's bytes, piece by piece."""
        return FilePieces(self.path(name))


class Draft:
    """A file being written, removed where its block ends by an error. ``keep`` makes it durable under a name."""

    def __init__(
        self,
        folder: Path,
        failpoints: Failpoints,
        midway: tuple[Point, ...],
        require_room: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:
        self._folder = folder
        self._failpoints = failpoints
        self._midway = midway
        self._require_room = require_room
        self.path = folder / f"{secrets.token_hex(16)}{_UNFINISHED}"
        self._file: BinaryIO = self.path.open("xb")

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self.discard()

    def write(self, piece: bytes | memoryview) -> None:
        """Room is looked for at every piece: a chunked body says no length, and others are written meanwhile.

        Raises: StorageFull
        """
        try:
            self._require_room(len(piece))
            self._file.write(piece)
            for point in self._midway:
                self._failpoints.reach(point)
        except StorageFull:
            self.discard()
            raise
        except OSError as error:
            self.discard()
            raise _explained(error) from error

    def keep(self, name: str) -> None:
        """fsync, rename, fsync the folder. Raises: StorageFull"""
        with self._synced():
            self.path.rename(self._folder / name)
            sync_folder(self._folder)

    def keep_in(self, storage: Storage, name: str) -> None:
        """As :meth:`keep`, in a storage; fsynced here before it goes there. Raises: StorageFull, Unavailable"""
        with self._synced():
            storage.take_in(self.path, name)

    @contextmanager
    def _synced(self) -> Iterator[None]:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            yield
        except OSError as error:
            self.discard()
            raise _explained(error) from error

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


class TaggedDraft:
    """A share's opened content on its way to the disk, and the tags of what is written."""

    def __init__(self, draft: Draft, layout: Layout) -> None:
        self._draft = draft
        self._tagger = Tagger(layout)

    def write(self, piece: bytes | memoryview) -> None:
        """Take opened content. Raises: StorageFull"""
        self._draft.write(piece)
        self._tagger.write(piece)

    def write_received(self, piece: bytes | memoryview) -> None:
        """Take the encrypted body as it came, which is not kept here."""

    def keep(self, name: str, content_key: bytes) -> bytes | None:
        """Make it durable under a name; blocks. -> its wrapped key, where it lies encrypted. Raises: StorageFull"""
        self._draft.keep(name)
        return None

    def tags(self) -> bytes:
        """Once all has been written."""
        return self._tagger.finish()


def file_name(*parts: str | int) -> str:
    """A flat, unique file name for what ``parts`` identify."""
    return hashlib.sha256("\x00".join(str(part) for part in parts).encode()).hexdigest()


def _explained(error: OSError) -> Exception:
    if is_full(error):
        return StorageFull("the server's disk is full; nothing was stored: send the same bytes again later")
    return error
