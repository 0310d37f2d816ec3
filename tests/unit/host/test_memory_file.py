"""A file in memory, which has a path and no name."""

from __future__ import annotations

from pathlib import Path

from host.files import MemoryFile


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
