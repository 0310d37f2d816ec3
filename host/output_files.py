"""Files and folders that a person asked for: new ones all or none, a changed one as a whole or as it was before.

A folder that a file's path names is made. Links are followed: what a link to an encrypted disk names stays on that
disk. A link to nothing is refused, because the disk behind it may not be mounted.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from host.files import is_full, sync_folder
from protocol.errors import ConfigurationError, StorageFull

_NO_RENAME: Final = frozenset({errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS})
"""A file mounted alone, or a folder in which nothing new may be made."""
_ORDINARY: Final = 0o666
"""Less what the process's umask takes away."""
_DRAFT: Final = ".moiety-draft"
_OF_THE_DISK: Final = "lost+found"
_WHY: Final = {
    errno.ENOTDIR: "{folder} is no folder",
    errno.EISDIR: "it is a folder",
    errno.EEXIST: "something else is there",
    errno.EROFS: "its disk is read-only",
    errno.ELOOP: "its links lead in a circle",
}


def write_new(*files: tuple[Path, str, int]) -> None:
    """Paths, texts and permissions: all of them, or none and nothing left behind. Nothing is overwritten: a lost key
    cannot be made again.

    Raises: ConfigurationError, StorageFull
    """
    placed: list[Path] = []
    try:
        for path, text, mode in files:
            placed.append(_placed_new(path, text.encode(), mode))
    except BaseException:
        for path in placed:
            path.unlink()
        raise


def _placed_new(path: Path, data: bytes, mode: int) -> Path:
    try:
        target = _followed(path)
        with _beside(target, data, mode) as beside:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))  # nobody else's from here on
            try:
                os.replace(beside, target)
            except BaseException:
                target.unlink()
                raise
    except FileExistsError:
        raise ConfigurationError(f"{path} exists already; choose another place or name") from None
    except OSError as error:
        raise unwritable(path, error) from None
    return target


def rewrite(path: Path, content: str | bytes, *, mode: int = _ORDINARY) -> None:
    """Make a file, or replace one that is there, which keeps its mode and owner, by a rename.

    A file that is mounted alone cannot be renamed over: it is written in place, and what was there before is put back
    when that fails. A device or a pipe is written to. Raises: ConfigurationError, StorageFull; the file is as it was
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        target = _followed(path)
        there = target.stat() if target.exists() else None
        if there is not None and not stat.S_ISREG(there.st_mode):
            with target.open("wb", buffering=0) as file:
                file.write(data)
        elif not _renamed_over(target, data, mode, there):
            _write_in_place(target, data)
    except OSError as error:
        raise unwritable(path, error) from None


def _renamed_over(target: Path, data: bytes, mode: int, there: os.stat_result | None) -> bool:
    """False where a file is there that can only be written in place. Raises: OSError"""
    try:
        with _beside(target, data, mode, there) as beside:
            os.replace(beside, target)
    except OSError as refused:
        if there is None or refused.errno not in _NO_RENAME:
            raise
        return False
    return True


def writable(path: Path | None) -> Path | None:
    """The callback of an option for a file that is written after minutes of work: a wrong place is said before.

    Raises: ConfigurationError, StorageFull
    """
    if path is None:
        return None
    try:
        target = _followed(path)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not target.exists():
            with _beside(target, b"", _ORDINARY):
                pass
        elif not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise unwritable(path, error) from None
    return path


def writable_folder(folder: Path | None) -> Path | None:
    """As ``writable``, for a folder, which is made where it is not there. Raises: ConfigurationError, StorageFull"""
    if folder is None:
        return None
    try:
        target = _followed(folder)
        target.mkdir(parents=True, exist_ok=True)
        with _beside(target / _DRAFT, b"", _ORDINARY):
            pass
    except OSError as error:
        raise unwritable(folder, error) from None
    return folder


def _write_in_place(target: Path, data: bytes) -> None:
    before = target.read_bytes()
    try:
        _overwrite(target, data)
    except OSError:
        with suppress(OSError):
            _overwrite(target, before)
        raise


def _overwrite(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _beside(target: Path, data: bytes, mode: int, like: os.stat_result | None = None) -> Iterator[Path]:
    """A whole file in the target's folder, to rename while the block runs; gone afterwards where it was not."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    beside = target.with_name(f".moiety-{secrets.token_hex(8)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            if like is not None:
                _liken(handle, like)
            file.write(data)
            file.flush()
            os.fsync(handle)
        yield beside
        with suppress(OSError):  # it has its name by now
            sync_folder(target.parent)
    finally:
        beside.unlink(missing_ok=True)


def _liken(handle: int, like: os.stat_result) -> None:
    """Raises: PermissionError, for an owner that only root may give; then the file is written in place"""
    own = os.fstat(handle)
    if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(handle, like.st_uid, like.st_gid)
    if own.st_mode != like.st_mode:
        os.fchmod(handle, stat.S_IMODE(like.st_mode))


@contextmanager
def filling(folder: Path, last: str, replaced: Collection[str] = (), mark: str = "") -> Iterator[Path]:
    """A folder to write files into; they get their places in ``folder`` when the block ends without an error.

    ``folder`` is made, or is empty, or holds ``mark`` and nothing but ``replaced``, which these files replace. It stays
    the same folder, so it may be a mounted volume or the working folder. ``last`` goes first and comes last: a crash in
    between leaves a folder that nobody takes for a whole one, and that the next call fills.

    Raises: ConfigurationError, StorageFull; then the folder is as it was, or without ``last``
    """
    made: list[Path] = []
    draft = folder / _DRAFT
    try:
        target = _followed(folder)
        draft = target / _DRAFT
        made = [parent for parent in (target, *target.parents) if not parent.exists()]
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        _require_own(folder, target, replaced, mark)
        shutil.rmtree(draft, ignore_errors=True)  # of a call that was cut off
        draft.mkdir(mode=0o700)
        yield draft
        _take_places(draft, target, last, replaced)
        made = []
    except OSError as error:
        raise unwritable(folder, error) from None
    finally:
        with suppress(OSError):
            if draft.is_dir() and not draft.is_symlink():
                shutil.rmtree(draft, ignore_errors=True)
            for parent in made:
                parent.rmdir()


def _require_own(folder: Path, target: Path, replaced: Collection[str], mark: str) -> None:
    found = {entry.name: entry for entry in os.scandir(target) if entry.name != _OF_THE_DISK}
    cut_off = found.pop(_DRAFT, None) is not None
    for name, entry in sorted(found.items()):
        if name not in replaced or not entry.is_file(follow_symlinks=False) or not (cut_off or mark in found):
            raise ConfigurationError(f"{folder} holds {name}, which this command did not make: name another folder")


def _take_places(draft: Path, target: Path, last: str, replaced: Collection[str]) -> None:
    made = sorted(draft.iterdir(), key=lambda path: path.name == last)
    for path in made:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for name in sorted(replaced, key=lambda name: name != last):
        (target / name).unlink(missing_ok=True)
        if name == last:
            sync_folder(target)
    for path in made:
        if path.name == last:
            sync_folder(target)
        os.replace(path, target / path.name)
    sync_folder(target)


def _followed(path: Path) -> Path:
    """The place behind links. Raises: ConfigurationError, for a link to nothing"""
    for link in (path, *path.parents):
        if link.is_symlink() and not os.path.exists(link):
            _require_no_circle(link)
            raise ConfigurationError(
                f"{path} cannot be written: {link} is a link to {os.readlink(link)}, which is not there; nothing was "
                "changed: mount its disk or make it, or name another place"
            )
    return Path(os.path.realpath(path))


def _require_no_circle(link: Path) -> None:
    """Raises: OSError, where links lead in a circle"""
    try:
        link.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise


def unwritable(path: Path, error: OSError) -> ConfigurationError | StorageFull:
    """One line for whoever named ``path``: what is wrong, and what to do."""
    if is_full(error):
        return StorageFull(
            f"no space left for {path}; nothing was changed: free space on its disk, or name another place"
        )
    why = _WHY.get(error.errno or 0, error.strerror or type(error).__name__).format(folder=path.parent)
    return ConfigurationError(
        f"{path} cannot be written: {why}; nothing was changed: name another place, in which user {os.geteuid()} may "
        "write"
    )
