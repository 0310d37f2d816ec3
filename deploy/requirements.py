"""Print what ``pip install '.[EXTRA ...]'`` would need, one requirement a line, without the project itself.

``python3 deploy/requirements.py server agent`` in the project's root; only the standard library. With
``--locked deploy/lock.txt`` before the extras: the lock's lines for them, by version and hash, for this Python and
machine; fails where the lock is of another.
"""

from __future__ import annotations

import platform
import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """The build's, the project's and the extras' requirements."""
    table = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    found = [*table["build-system"]["requires"], *table["project"]["dependencies"]]
    for extra in extras:
        found += table["project"]["optional-dependencies"][extra]
    return found


def locked(lock: Path, extras: list[str]) -> list[str]:
    """The lock's lines for what every installation and these extras need.

    Raises: SystemExit, when the lock is of another Python or machine, or has none of an extra
    """
    first, *lines = lock.read_text(encoding="utf-8").splitlines()
    here = f"Python {'.'.join(platform.python_version_tuple()[:2])}, {platform.system()} {platform.machine()}"
    if not first.startswith(f"# {here};"):
        raise SystemExit(f"{lock} is of {first[2:].split(';')[0]}, this is {here}: make one for it (make lock)")
    needs = [(line, set(line.partition("# ")[2].split())) for line in lines]
    for extra in ("base", *extras):
        if not any(extra in of for _, of in needs):
            raise SystemExit(f"{lock} has nothing of extra {extra!r}: make it anew (make lock)")
    return [line for line, of in needs if of & {"base", *extras}]


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["--locked"]:
        found = locked(Path(words[1]), words[2:])
    else:
        found = requirements(Path("pyproject.toml"), words)
    sys.stdout.write("\n".join(found) + "\n")
