"""A file in memory, at servers and at sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent import scratch as at_sites
from servers import scratch as at_servers


@pytest.mark.parametrize("module", [at_servers, at_sites])
def test_what_was_written_last_is_there_and_nothing_else(module: object) -> None:
    file = module.MemoryFile()
    file.write(b"a longer text")
    file.write(b"short")
    assert file.read() == Path(file.path).read_bytes() == b"short"
    Path(file.path).write_bytes(b"written by path")
    assert file.read() == b"written by path"
    assert not Path(file.path).resolve().exists()
    path = file.path
    file.close()
    assert not Path(path).exists()
