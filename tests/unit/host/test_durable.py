"""Lines that are added stand whole or not at all, and nothing rests on a sync that failed."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from host import files
from host.audit_log import AUDIT, Action, AuditLog, read_audit
from host.files import append_durably, new_folder, write_durably
from protocol.errors import StorageFull


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Longer ones are cut off, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def failing(_: object) -> NoReturn:
    raise OSError(errno.EIO, "no answer")


@pytest.mark.parametrize("before", [b"", b"one\n"])
def test_a_line_without_room_leaves_nothing(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "lines"
    path.write_bytes(before)
    with files_of_at_most(len(before) + 2), pytest.raises(StorageFull, match="free space"):
        append_durably(path, b"two\n")
    assert path.read_bytes() == before
    append_durably(path, b"two\n")
    assert path.read_bytes() == before + b"two\n"


def test_a_file_without_room_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_durably(path, b"old")
    with files_of_at_most(2), pytest.raises(StorageFull, match="free space"):
        write_durably(path, b"newer")
    assert [one.name for one in tmp_path.iterdir()] == ["state"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("before", [b"", b"one\n"])
def test_half_a_line_is_cut_off(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "lines"
    path.write_bytes(before + b"hal")
    append_durably(path, b"two\n")
    assert path.read_bytes() == before + b"two\n"


@pytest.mark.parametrize("what", ["fsync", "folder"])
def test_a_line_that_could_not_be_synced_is_not_there_and_the_next_is_synced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path, synced = tmp_path / "lines", list[Path]()
    with monkeypatch.context() as patched:
        patched.setattr(*((os, "fsync", failing) if what == "fsync" else (files, "sync_folder", failing)))
        with pytest.raises(OSError, match="no answer"):
            append_durably(path, b"one\n")
    assert path.read_bytes() == b""
    monkeypatch.setattr(files, "sync_folder", synced.append)
    append_durably(path, b"two\n")
    append_durably(path, b"three\n")
    assert (path.read_bytes(), synced) == (b"two\nthree\n", [tmp_path])


def test_a_folder_whose_name_could_not_be_synced_is_synced_by_whoever_asks_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    with monkeypatch.context() as patched:
        patched.setattr(files, "sync_folder", failing)
        with pytest.raises(OSError, match="no answer"):
            new_folder(tmp_path / "new")
    monkeypatch.setattr(files, "sync_folder", synced.append)
    assert new_folder(tmp_path / "new").is_dir()
    assert synced == [tmp_path]


def _no_sync(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(os, "fsync", failing)


def _no_folder(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(files, "sync_folder", failing)


@pytest.mark.parametrize("breaks", [_no_sync, _no_folder])
def test_an_entry_of_an_audit_log_that_could_not_be_synced_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: Callable[[pytest.MonkeyPatch], None]
) -> None:
    log, synced = AuditLog(tmp_path / "state", "c1"), list[Path]()
    log_path = log.folder / AUDIT
    with monkeypatch.context() as patched:
        breaks(patched)
        with pytest.raises(OSError, match="no answer"):
            log.add(Action.STARTED)
    assert log_path.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(files, "sync_folder", synced.append)
    assert [log.add(Action.STARTED).number for _ in range(2)] == [1, 2]
    assert synced == [log.folder]
    with files_of_at_most(log_path.stat().st_size + 5), pytest.raises(StorageFull):
        log.add(Action.STARTED)
    assert log.add(Action.STARTED).number == len(read_audit(log_path)) == 3
