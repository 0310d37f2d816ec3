"""Write ``deploy/lock.txt``: every package that an installation without a network needs, by version and hash.

``python3 -m deploy.lock >deploy/lock.txt`` in the project's root, with the Python and on the kind of machine that will
install it; pip's own configuration says from which index. The lock names no index: whoever installs by it from any
place gets these files or an error.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from deploy.requirements import requirements

EXTRAS: Final = ("server", "page", "agent", "he", "sql", "postgres")
FOR_THE_DEMO: Final = ("pandas>=2.2", "matplotlib>=3.10", "psutil>=7", "trustme>=1.2")
"""The harness's own packages, so that an installation can be tried before anybody is asked to join."""


def resolved(wanted: Iterable[str]) -> list[dict[str, Any]]:
    """What pip would install, as its report has it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ("--quiet", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", str(report))
        command = (sys.executable, "-m", "pip", "install", *options, *wanted)
        subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603  # what pyproject.toml says
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    return found


def lock(found: Iterable[dict[str, Any]]) -> str:
    """Lines for ``pip install --require-hashes``, by name."""
    lines = [
        f"# Python {'.'.join(platform.python_version_tuple()[:2])}, {platform.system()} {platform.machine()}; made by "
        "deploy/lock.py, not by hand"
    ]
    for one in sorted(found, key=lambda entry: entry["metadata"]["name"].lower()):
        said = one["metadata"]
        digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{said['name'].lower()}=={said['version']} --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(lock(resolved((*requirements(Path("pyproject.toml"), list(EXTRAS)), *FOR_THE_DEMO))))
