"""Which code made a result: one digest over the source that can change what a run gives.

Pages, benchmarks and servers are left out, so that a page may be mended without running anything again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Final

from protocol.errors import ConfigurationError

ROOT: Final = Path(__file__).resolve().parents[3]
SOURCES: Final = (
    "protocol",
    "host",
    "client_agent",
    "harness/baselines",
    "harness/datasets",
    "harness/engine",
    "harness/simulation",
    "harness/training",
)


@cache
def code_digest() -> str:
    """SHA-256 over names and bytes of every Python file of ``SOURCES``; read once a process."""
    return digest_of_code(ROOT, SOURCES)


def digest_of_code(root: Path, folders: Collection[str]) -> str:
    """Over the Python files below ``folders``, sorted by name, each with its length in front."""
    found = hashlib.sha256()
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def require_same_code(digest: str, folder: Path) -> None:
    """Results of two versions of the code are not put into one table. Raises: ConfigurationError"""
    if digest != code_digest():
        made = f"code {digest[:12]}" if digest else "a version that did not say which code it was"
        raise ConfigurationError(
            f"{folder} holds runs made by {made}, this is code {code_digest()[:12]}, and runs of two versions are not "
            "mixed in one table: give another --out, or go on with the version that made them"
        )
