"""Files without a row, where other processes may be about to store one: gone after two looks, untouched in between."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from servers.background.processes import Strays
from servers.scale.passes import OWNER, Shards
from servers.store.files import ShareFiles
from servers.store.object_storage import FolderStorage


def test_what_has_no_row_at_two_looks_and_was_not_written_to_goes(tmp_path: Path) -> None:
    files, named = ShareFiles(tmp_path / "shares", 0), set[str]()
    server: Any = SimpleNamespace(files=files, store=SimpleNamespace(files=lambda: named), shards=None)
    for name in ("named", "stored later", "left behind", "being written"):
        files.path(name).write_bytes(b"share")
    named.add("named")
    strays = Strays(server)
    assert strays.look() == 0
    named.add("stored later")
    os.utime(files.path("being written"), (1.0, 1.0))
    assert strays.look() == 1
    assert set(files.written()) == {"named", "stored later", "being written"}
    assert strays.look() == 1
    assert set(files.written()) == {"named", "stored later"}


def test_the_storage_of_a_cluster_too(tmp_path: Path) -> None:
    files, named = ShareFiles(tmp_path / "shares", 0), set[str]()
    storage = FolderStorage(tmp_path / "storage")
    none: Any = None
    shards = Shards(none, storage, none, tmp_path / "sums", range_elements=1, shares_a_task=1)
    server: Any = SimpleNamespace(files=files, store=SimpleNamespace(files=lambda: named), shards=shards)
    for name in (OWNER, "aa", "bb"):
        storage.write(name, b"share")
    strays = Strays(server)
    assert strays.look() == 0
    named.add("bb")
    assert strays.look() == 1
    assert set(storage.names()) == {OWNER, "bb"}
