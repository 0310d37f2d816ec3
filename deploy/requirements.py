"""Print what ``pip install '.[EXTRA ...]'`` would need, one requirement a line, without the project itself.

``python3 deploy/requirements.py server agent`` in the project's root; only the standard library.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path("pyproject.toml"), sys.argv[1:])) + "\n")
