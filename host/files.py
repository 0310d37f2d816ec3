"""Files on this machine: durable, private, readable, still open for writing, or in memory."""

from __future__ import annotations

import codecs
import errno
import fcntl
import io
import os
import secrets
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

from protocol.errors import ConfigurationError, StorageFull

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def write_durably(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: afterwards the old or the new content is there, never a part."""
    write_pieces(path, (data,))


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> int:
    """As ``write_durably``, piece by piece; returns the number of bytes.

    Raises: StorageFull
    """
    with replacing(path) as file:
        return sum(file.write(piece) for piece in pieces)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, in any order; it takes the place of ``path`` durably when the block ends without an error.

    Raises: StorageFull
    """
    with replacing_together(path) as (file,):
        yield file


@contextmanager
def replacing_together(*paths: Path, folder_synced: bool = True) -> Iterator[tuple[BinaryIO, ...]]:
    """Files of one folder to write; all take their places, in this order, when the block ends without an error.

    A process that is killed leaves the first few in place, whole. A power cut before the block has ended may leave any
    of them: whoever takes the last for the word that all are there looks whether they are. ``folder_synced``: False
    where another file of this folder, or a folder in it, is made durable before anything rests on these.

    Raises: StorageFull
    """
    temporary = [f"{path}.tmp" for path in paths]
    try:
        with ExitStack() as stack:
            files = tuple(stack.enter_context(open(one, "wb")) for one in temporary)
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        for one, path in zip(temporary, paths, strict=True):
            os.replace(one, path)
        if folder_synced:
            sync_folder(paths[0].parent)
    except BaseException as error:
        for one in temporary:  # a full disk gets back what it took
            with suppress(OSError):
                os.unlink(one)
        if isinstance(error, OSError) and is_full(error):
            names = ", ".join(path.name for path in paths)
            raise StorageFull(f"no space left for {names}: free space on this machine's disk") from None
        raise


def is_full(error: OSError) -> bool:
    """Return whether a file could not be written because the disk, or what a user or a file may take of it, is full."""
    return error.errno in _FULL


def sync_folder(folder: Path) -> None:
    """Make a rename or a new name in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def new_folder(folder: Path) -> Path:
    """Create ``folder`` (and its parents), readable by the owner only."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            sync_folder(folder.parent)
        except OSError:
            with suppress(OSError):
                folder.rmdir()  # so that whoever asks again has it synced
            raise
    return folder


def append_durably(path: Path, line: bytes) -> None:
    """Add to a file whose lines are never changed, also beside another process; on disk when this returns.

    Half a line that a crash left at the end is cut off first. Raises: StorageFull; then nothing of the line is there
    """
    try:
        with path.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            add_line(file, line, end_of_lines(file))
    except OSError as error:
        if is_full(error):
            raise StorageFull(f"no space left for {path.name}: free space on this machine's disk") from None
        raise


def add_line(file: FileIO, line: bytes, end_bytes: int) -> None:
    """Write behind a file's first ``end_bytes``, durably. Raises: OSError; then the file ends there as before"""
    try:
        if os.fstat(file.fileno()).st_size != end_bytes:
            file.truncate(end_bytes)
        _write_whole(file, line)
        os.fsync(file.fileno())
        if end_bytes == 0:  # its name is new, or its folder could not be synced before
            sync_folder(Path(file.name).parent)
    except OSError:
        with suppress(OSError):
            file.truncate(end_bytes)
        raise


def _write_whole(file: FileIO, line: bytes) -> None:
    """Raises: OSError, where only a part had room"""
    if file.write(line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def end_of_lines(file: FileIO) -> int:
    """Bytes up to the last line's end; what is behind it is half a line that a crash left."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, size_bytes - 1))
    if file.read(1) in (b"", b"\n"):
        return size_bytes
    file.seek(0)
    return file.readall().rfind(b"\n") + 1


_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark its first two bytes are
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
MARK_BYTES: Final = 4


def marked_encoding(content: bytes) -> str:
    """The encoding that the first bytes of a file name; empty where they name none."""
    return next((encoding for mark, encoding in _MARKS if content.startswith(mark)), "")


def text_of(content: bytes) -> str:
    """The text of a file, lines ended by a newline. Raises: UnicodeError, also for zero bytes: UTF-16 without a mark"""
    marked = marked_encoding(content)
    wide = marked not in ("", "utf-8")
    text = content.decode(marked if wide else "utf-8-sig")
    if "\0" in text or (wide and not text):
        raise UnicodeDecodeError(marked or "utf-8", content, 0, len(content), "zero bytes, or a mark and nothing else")
    return io.StringIO(text, newline=None).read()


_COMES_FROM: Final = {
    "settings.toml": "is the folder right? 'moiety server init' and 'moiety site join' make one",
    "roster.toml": (
        "in a folder that 'moiety site join' made, 'moiety site status --wait --config SETTINGS.toml' brings it once "
        "the federation is founded"
    ),
    "keys.toml": "is the folder right? Keys that are lost come back from a backup alone",
}


def why_unreadable(path: Path, error: OSError | UnicodeDecodeError) -> str:
    """One sentence with the next step."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8: is it the right file? If it is, save it as UTF-8"
    if isinstance(error, FileNotFoundError):
        return f"there is no such file: {_COMES_FROM.get(path.name, 'is the path right?')}"
    if isinstance(error, PermissionError):
        user = os.geteuid()
        return f"user {user} may not: give it to that user (chown {user} {path}), with all folders on the way"
    if isinstance(error, IsADirectoryError):
        return "it is a folder: name a file in it (a container engine makes one where a mounted file was missing)"
    return f"{error.strerror or type(error).__name__}: is it the right path, and its disk in order?"


_OTHERS: Final = 0o077
_GROUP_READS: Final = 0o040
_ROOT: Final = 0
_OWNER_ONLY: Final = 0o700
UMASK: Final = 0o077
"""The whole process's mask: the files it makes are its user's alone."""


def read_secret(path: Path) -> str:
    """A secret text file's content. Raises: ConfigurationError, when it cannot be read, or others may read it"""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            text = text_of(file.read())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {why_unreadable(path, error)}") from None
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS & ~_lent(found.st_uid, os.geteuid()):
        raise ConfigurationError(
            f"{path}: others than its owner may use this secret (mode {mode:04o}): chmod 600 {path}, and make new "
            "keys if others could have read it"
        )
    return text


def _lent(owner: int, user: int) -> int:
    """The bits that are no fault: root lends a file through its group to a user that is not root, as Kubernetes mounts
    secrets and as PostgreSQL allows it for its keys. Root could read it anyway.
    """
    return _GROUP_READS if owner == _ROOT != user else 0


def private_folder(folder: Path) -> None:
    """Make it, or take it back from others. Raises: ConfigurationError"""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=_OWNER_ONLY)
        if stat.S_IMODE(folder.stat().st_mode) & _OTHERS:
            folder.chmod(_OWNER_ONLY)
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: cannot be made this user's alone: {error.strerror}; give it to this user and chmod 700 it"
        ) from None


def take_back(files: list[Path]) -> None:
    """Make files private that an earlier version may have left readable."""
    for path in files:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OTHERS)


_SET_LEASE: Final[int | None] = getattr(fcntl, "F_SETLEASE", None)
_SET_SIGNAL: Final[int] = getattr(fcntl, "F_SETSIG", 0)
_HELD_ELSEWHERE: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})


def has_writer(file: BinaryIO) -> bool:
    """Tell whether any process of this machine can still write to ``file``, which is itself open for reading alone.

    The kernel refuses a read lease while a descriptor for writing is open. A network file system refuses it with the
    same error whenever its server grants no lease, so a new file beside ``file`` must get one before a refusal counts.
    False where there are no leases (many network file systems, macOS): the caller needs another way to notice what is
    written later. Raises: OSError, where no file can be made in the folder
    """
    if _SET_LEASE is None or _leased(file, _SET_LEASE):
        return False
    probe = Path(str(file.name)).with_name(f".lease-{secrets.token_hex(16)}")
    os.mknod(probe, 0o600)  # never open for writing, so that no descriptor of it can leak into another process
    try:
        with probe.open("rb", buffering=0) as unwritten:
            return _leased(unwritten, _SET_LEASE)
    finally:
        probe.unlink()


def _leased(file: BinaryIO, set_lease: int) -> bool:
    """True, too, where the kernel or the file system knows no leases; the lease is given back at once."""
    try:
        fcntl.fcntl(file, _SET_SIGNAL, signal.SIGURG)  # who opens it meanwhile breaks the lease: SIGIO would kill us
        fcntl.fcntl(file, set_lease, fcntl.F_RDLCK)
        fcntl.fcntl(file, set_lease, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno not in _HELD_ELSEWHERE
    return True


class MemoryFile:
    """An anonymous file in memory (Linux): no disk, no name that another process could open."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("moiety")

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self._descriptor}"

    def read(self) -> bytes:
        """All that was written last."""
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def write(self, data: bytes) -> None:
        """Replace what is there; its memory is used again."""
        os.pwrite(self._descriptor, data, 0)
        os.ftruncate(self._descriptor, len(data))

    def close(self) -> None:
        os.close(self._descriptor)
