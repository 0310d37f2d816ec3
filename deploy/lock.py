"""Write ``deploy/lock.txt``: every package that an image or an installation without a network needs, by version and
hash, and after it the extras that need it.

``python3 -m deploy.lock >deploy/lock.txt`` in the project's root, with the Python and on the kind of machine that will
install it; pip's own configuration says from which index. The lock names no index: whoever installs by it from any
place gets these files or an error. ``--cuda`` writes the agent's with torch for CUDA, ``deploy/lock-cuda.txt``.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from packaging.markers import default_environment
from packaging.requirements import Requirement

from deploy.requirements import requirements

EXTRAS: Final = ("server", "page", "agent", "he", "sql", "postgres", "scale")
OF_CUDA: Final = ("page", "agent", "he", "sql", "postgres")
FOR_THE_DEMO: Final = ("pandas>=2.2", "matplotlib>=3.10", "psutil>=7", "trustme>=1.2")
"""The harness's own packages, so that an installation can be tried before anybody is asked to join."""
DEMO: Final = "demo"
BASE: Final = "base"
"""What every installation needs."""


def resolved(wanted: Iterable[str]) -> list[dict[str, Any]]:
    """What pip would install, as its report has it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ("--quiet", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", str(report))
        command = (sys.executable, "-m", "pip", "install", *options, *wanted)
        subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603  # what pyproject.toml says
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    return found


def canonical(name: str) -> str:
    """As an index names it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(roots: Iterable[str], found: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The packages that these requirements lead to. ``found``: the report's, by name."""
    reached: set[tuple[str, str]] = set()
    ahead = [Requirement(one) for one in roots]
    while ahead:
        one = ahead.pop()
        name = canonical(one.name)
        for extra in {"", *one.extras}:
            if (name, extra) in reached:
                continue
            reached.add((name, extra))
            environment = {key: str(value) for key, value in default_environment().items()} | {"extra": extra}
            asked = [Requirement(text) for text in found[name]["metadata"].get("requires_dist", ())]
            ahead += [each for each in asked if each.marker is None or each.marker.evaluate(environment)]
    return {name for name, _ in reached}


def lock(found: Iterable[dict[str, Any]], wanted: Mapping[str, Iterable[str]]) -> str:
    """Lines for ``pip install --require-hashes``, by name. ``wanted``: each extra's own requirements."""
    by_name = {canonical(entry["metadata"]["name"]): entry for entry in found}
    of = {extra: needed(roots, by_name) for extra, roots in wanted.items()}
    lines = [
        f"# Python {'.'.join(platform.python_version_tuple()[:2])}, {platform.system()} {platform.machine()}; made by "
        "deploy/lock.py, not by hand; after each package the extras that need it"
    ]
    for name in sorted(by_name):
        said = by_name[name]["metadata"]
        digest = by_name[name]["download_info"]["archive_info"]["hashes"]["sha256"]
        extras = " ".join(extra for extra in wanted if name in of[extra])
        lines.append(f"{said['name'].lower()}=={said['version']} --hash=sha256:{digest} # {extras}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print it."""
    cuda = "--cuda" in sys.argv[1:]
    pyproject = Path("pyproject.toml")
    base = requirements(pyproject, [])
    wanted = {BASE: base}
    wanted |= {one: requirements(pyproject, [one])[len(base) :] for one in (OF_CUDA if cuda else EXTRAS)}
    if not cuda:
        wanted |= {DEMO: list(FOR_THE_DEMO)}
    every = dict.fromkeys(one for several in wanted.values() for one in several)
    asked = [re.sub(r"^(torch)==", r"\1===", one) if cuda else one for one in every]  # === : no local version, +cpu
    sys.stdout.write(lock(resolved(asked), wanted))


if __name__ == "__main__":
    main()
