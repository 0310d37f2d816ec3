"""A file in pieces: the same bytes whoever asks first, and no waiting for the disk where that was asked for."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from servers.store import files as module
from servers.store.files import PIECE_BYTES, FilePieces


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file system answers that has the whole file in memory; the one of temporary files may be none that can."""

    def preadv(file: int, rooms: Sequence[memoryview], offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        found = os.pread(file, len(rooms[0]), offset)
        rooms[0][: len(found)] = found
        return len(found)

    monkeypatch.setattr(os, "preadv", preadv)


def written(folder: Path, size: int) -> tuple[Path, bytes]:
    content = os.urandom(size)
    (folder / "file").write_bytes(content)
    return folder / "file", content


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.usefixtures("in_memory")
def test_all_of_it_in_order(tmp_path: Path, size: int, asks: bool) -> None:
    path, content = written(tmp_path, size)
    pieces, taken = FilePieces(path), list[bytes]()
    assert not pieces.at_hand()  # it is not even open
    while (piece := next(pieces, None)) is not None:
        taken.append(bytes(piece))
        assert not asks or (pieces.at_hand() and pieces.at_hand())
    assert b"".join(taken) == content
    assert all(len(piece) == PIECE_BYTES for piece in taken[:-1])
    assert next(pieces, None) is None
    assert pieces.at_hand()


@pytest.mark.parametrize("found", ["nothing", "a part", "no such flag"])
def test_what_is_not_in_memory_is_read_when_it_is_taken(
    tmp_path: Path, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, content = written(tmp_path, 2 * PIECE_BYTES)

    def preadv(file: int, rooms: Sequence[memoryview], offset: int, flags: int) -> int:
        if found == "nothing":
            raise BlockingIOError(errno.EAGAIN, "on its way from the disk")
        return len(rooms[0]) // 2

    monkeypatch.setattr(os, "preadv", preadv)
    if found == "no such flag":
        monkeypatch.setattr(module, "_WITHOUT_WAITING", None)
    pieces = FilePieces(path)
    first = bytes(next(pieces))
    assert not pieces.at_hand()
    assert first + bytes(next(pieces)) == content


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        next(FilePieces(tmp_path / "none"))


@pytest.mark.usefixtures("in_memory")
def test_a_file_that_is_deleted_meanwhile_is_read_to_its_end(tmp_path: Path) -> None:
    path, content = written(tmp_path, PIECE_BYTES + 5)
    pieces = FilePieces(path)
    first = bytes(next(pieces))
    path.unlink()
    assert pieces.at_hand()
    assert first + b"".join(pieces) == content
