"""Files without a row, where other processes may be about to store one: gone after two looks, untouched in between."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from servers.background.processes import Strays
from servers.scale.passes import OWNER, Shards
from servers.scale.shares import ClusterShares
from servers.store.files import ShareFiles
from servers.store.object_storage import FolderStorage
from servers.store.shares import Shares


def test_what_has_no_row_at_two_looks_and_was_not_written_to_goes(tmp_path: Path) -> None:
    files, named = ShareFiles(tmp_path / "shares", 0), set[str]()
    store: Any = SimpleNamespace(files=lambda: named)
    server: Any = SimpleNamespace(files=files, store=store, shares=Shares(store, files))
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
    storage, named = FolderStorage(tmp_path / "storage"), set[str]()
    files, none = ShareFiles(tmp_path / "shares", 0, storage=storage), cast(Any, None)
    shards = Shards(none, storage, none, tmp_path / "sums", range_elements=1, shares_a_task=1)
    store: Any = SimpleNamespace(files=lambda: named)
    server: Any = SimpleNamespace(files=files, store=store, shares=ClusterShares(store, files, shards))
    for name in (OWNER, "aa", "bb"):
        storage.write(name, b"share")
    strays = Strays(server)
    assert strays.look() == 0
    named.add("bb")
    assert strays.look() == 1
    assert set(storage.names()) == {OWNER, "bb"}
