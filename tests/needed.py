"""``python -m tests.needed deploy|soak``: the programs that these tests cannot do without, before anything is built.

Ends with 1 and a line for each that is missing. Standard library alone: it runs before anything is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_POSTGRESQL: Final = Path("/usr/lib/postgresql")
IMAGES: Final = ("BASE_IMAGE", "MOIETY_POSTGRES_IMAGE", "MOIETY_CADDY_IMAGE")
LOCAL_BASE: Final = "moiety-base:local"
BESIDE_BASE: Final = "moiety-beside:local"
COMPOSE: Final = (("docker", "compose"), ("docker-compose",))


def works(*command: str) -> bool:
    """Run a program; return false when it is missing or fails."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def postgresql_programs() -> Path | None:
    """The programs of Debian's newest version, or those that the path leads to."""
    found = sorted(_POSTGRESQL.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else None if on_path is None else Path(on_path).resolve().parent


def _has_images() -> bool:
    built = os.environ.get("MOIETY_IMAGES_BUILT") == "1"
    named = all(name in os.environ or (built and name == IMAGES[0]) for name in IMAGES)
    made = (works("docker", "image", "inspect", base) for base in (LOCAL_BASE, BESIDE_BASE))
    return named or shutil.which("debootstrap") is not None or all(made)


class Need(NamedTuple):
    """One program. Where it is no ``must``, the tests run and leave something out."""

    what: str
    found: Callable[[], object]
    remedy: str
    must: bool = True


def _program(name: str, package: str, *, must: bool = True) -> Need:
    return Need(name, lambda: shutil.which(name), f"apt-get install {package}", must)


NEEDS: Final = {
    "deploy": (
        Need("root", lambda: os.geteuid() == 0, "type it as root: folders are given to the containers' users"),
        Need("a container engine", lambda: works("docker", "info"), "apt-get install docker.io, and start it"),
        Need("Compose", lambda: any(works(*one, "version") for one in COMPOSE), "apt-get install docker-compose"),
        Need("images", _has_images, f"apt-get install debootstrap, or set {', '.join(IMAGES)}"),
        _program("caddy", "caddy"),
        _program("kubectl", "kubernetes-client"),
        _program("promtool", "prometheus"),
        _program("systemd-analyze", "systemd"),
    ),
    "soak": (
        Need("PostgreSQL", postgresql_programs, "apt-get install postgresql"),
        _program("ssh-keygen", "openssh-client"),
        _program("caddy", "caddy", must=False),
    ),
}


def main(tests: str) -> int:
    missing = [need for need in NEEDS[tests] if not need.found()]
    for need in missing:
        says = "needs" if need.must else "leaves out the tests that need"
        sys.stderr.write(f"make {'test-deploy' if tests == 'deploy' else tests} {says} {need.what}: {need.remedy}\n")
    return int(any(need.must for need in missing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
