"""Durable lines, text encodings, unreadable files and files in memory."""

from __future__ import annotations

import codecs
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
from host.files import (
    MemoryFile,
    append_durably,
    marked_encoding,
    new_folder,
    read_secret,
    why_unreadable,
    write_durably,
)
from host.settings import read_text
from protocol.errors import ConfigurationError, StorageFull

# --- durable ----------------------------------------------------------------------------------------------------------


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


# --- text files -------------------------------------------------------------------------------------------------------

TEXT = "größe = 1\n# an end\n"


@pytest.mark.parametrize(
    ("content", "marked"),
    [
        (TEXT.encode(), ""),
        (codecs.BOM_UTF8 + TEXT.replace("\n", "\r\n").encode(), "utf-8"),
        (codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"), "utf-16"),
        (codecs.BOM_UTF16_BE + TEXT.replace("\n", "\r").encode("utf-16-be"), "utf-16"),
        (codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"), "utf-32"),
        (codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be"), "utf-32"),
    ],
)
def test_a_mark_says_how_a_text_is_written(tmp_path: Path, content: bytes, marked: str) -> None:
    path = tmp_path / "file"
    path.touch(mode=0o600)
    path.write_bytes(content)
    assert (read_text(path), read_secret(path), marked_encoding(content)) == (TEXT, TEXT, marked)


@pytest.mark.parametrize("content", [TEXT.encode("latin-1"), TEXT.encode("utf-16-le"), codecs.BOM_UTF16_LE + b"a"])
def test_what_has_no_mark_is_utf_8_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.touch(mode=0o600)
    path.write_bytes(content)
    for read in (read_text, read_secret):
        with pytest.raises(ConfigurationError, match=r"it is not text in UTF-8: .* save it as UTF-8"):
            read(path)


# --- unreadable -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [read_text, read_secret])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("settings.toml", "there is no such file: is the folder right?"),
        ("roster.toml", "there is no such file: in a folder that 'moiety site join' made, 'moiety site status --wait"),
        ("keys.toml", "come back from a backup alone"),
        ("invitation.txt", "there is no such file: is the path right?"),
        ("folder", "it is a folder: name a file in it"),
        ("bytes.toml", "it is not text in UTF-8"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(tmp_path: Path, read: object, name: str, says: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "bytes.toml").chmod(0o600)
    with pytest.raises(ConfigurationError, match=f"{name} cannot be read: ") as refused:
        read(tmp_path / name)  # type: ignore[operator]
    assert says in refused.value.detail
    assert "Errno" not in refused.value.detail


def test_who_may_not_read_it_is_named() -> None:
    assert "user " in why_unreadable(Path("/x/keys.toml"), PermissionError(13, "Permission denied"))
    assert why_unreadable(Path("/x"), OSError(5, "Input/output error")).startswith("Input/output error: is it the ")
    assert why_unreadable(Path("/x"), OSError()).startswith("OSError: ")


# --- memory file ------------------------------------------------------------------------------------------------------


def test_what_was_written_last_is_there_and_nothing_else() -> None:
    file = MemoryFile()
    file.write(b"a longer text")
    file.write(b"short")
    assert file.read() == Path(file.path).read_bytes() == b"short"
    Path(file.path).write_bytes(b"written by path")
    assert file.read() == b"written by path"
    assert not Path(file.path).resolve().exists()
    path = file.path
    file.close()
    assert not Path(path).exists()
