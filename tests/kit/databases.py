"""A server's databases with the newest schema and nothing in them: copies of one that was migrated."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from servers.store.migrate import upgrade


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "server.db"
        upgrade(f"sqlite:///{file}")
        return file.read_bytes()


def new_database(file: Path) -> str:
    """Make an SQLite database in ``file``; -> its URL."""
    file.write_bytes(_migrated())
    return f"sqlite:///{file}"
