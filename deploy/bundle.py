"""``make bundle``: all that an installation without a network needs, as one archive in ``dist``.

    python3 -m deploy.bundle [--out dist] [--images moiety-server:local,moiety-agent:local]

In it, below ``moiety-VERSION/``: the project as it is built from (code, deploy, docs), every package of
``deploy/lock.txt`` as a wheel of that hash in ``deploy/wheels`` (which is also where an image's build looks first), the
project's own wheel, a bill of materials, images if any are named and an engine has them, ``install.sh`` and
``SHA256SUMS``. The same inputs give the same bytes, images apart. It needs the standard library, pip and setuptools.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCK: Final = ROOT / "deploy" / "lock.txt"
TAKEN: Final = (
    "README.md",
    "LICENSE",
    "SECURITY.md",
    "pyproject.toml",
    "moiety.py",
    "protocol",
    "host",
    "servers",
    "client_agent",
    "harness",
    "deploy",
    "docs",
)
_LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.whl")
_NO_TIME: Final = "315532800"
"""The first time that a wheel can name, for every file in the project's own."""
_LOCKED: Final = re.compile(r"^([a-z0-9._-]+)==(\S+) --hash=sha256:([0-9a-f]{64}) # [a-z ]+$")


def version() -> str:
    """The project's."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return found


def locked() -> tuple[tuple[str, str, str], ...]:
    """Name, version and SHA-256 of every package of the lock. Raises: ValueError for a line that is none"""
    found = []
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        match = _LOCKED.match(line)
        if match is None and not line.startswith("#"):
            raise ValueError(f"{LOCK.name}: {line!r} is no package with its hash")
        if match is not None:
            found.append((match[1], match[2], match[3]))
    return tuple(found)


def bill_of_materials(number: str) -> dict[str, Any]:
    """CycloneDX 1.6, of the lock: name, version, hash. ``moiety licences --json`` has the licences."""
    components = [
        {
            "type": "library",
            "name": name,
            "version": release,
            "purl": f"pkg:pypi/{name}@{release}",
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
        for name, release, digest in locked()
    ]
    own = {"type": "application", "name": "moiety", "version": number}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
    }


def copy_project(folder: Path) -> None:
    """Code, deploy and docs, without what a build or a demonstration left there."""
    for name in TAKEN:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=_LEFT_OUT)
        else:
            shutil.copy(source, folder / name)
    shutil.rmtree(folder / "deploy" / "demo", ignore_errors=True)


def fill(folder: Path, images: tuple[str, ...]) -> None:
    """Everything but the checksums."""
    copy_project(folder)
    wheels = folder / "deploy" / "wheels"
    pip = (sys.executable, "-m", "pip", "--quiet")
    only = ("--only-binary", ":all:", "--no-deps", "--require-hashes")
    _run(*pip, "download", *only, "--dest", str(wheels), "--requirement", str(LOCK))
    _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "deploy" / "own"), str(folder))
    for left in (*folder.glob("build"), *folder.glob("*.egg-info")):
        shutil.rmtree(left)
    shutil.copy(ROOT / "deploy" / "install_bundle.sh", folder / "install.sh")
    said = json.dumps(bill_of_materials(version()), indent=1) + "\n"
    (folder / "sbom.json").write_text(said, encoding="utf-8")
    if images:
        _run("docker", "save", "--output", str(folder / "images.tar"), *images)


def _run(*command: str) -> None:
    environment = os.environ | {"SOURCE_DATE_EPOCH": _NO_TIME}
    subprocess.run(command, check=True, env=environment)  # noqa: S603  # fixed words and this file's own paths


def sum_up(folder: Path) -> None:
    """``SHA256SUMS`` of every file, as sha256sum reads it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{_sha256(path)}  {path.relative_to(folder)}\n" for path in paths]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def archive(folder: Path, path: Path) -> None:
    """Names in order, nobody's files, no times: the same content is the same archive. Wheels are compressed already."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    with tarfile.open(path, "w") as made:
        for one in sorted(folder.rglob("*")):
            made.add(one, arcname=str(Path(folder.name) / one.relative_to(folder)), recursive=False, filter=plain)


def main() -> None:
    """Make it, and print where it is and its digest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--images", default="", help="names of images that an engine here has, with commas")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / f"moiety-{version()}.tar"
    with tempfile.TemporaryDirectory(dir=asked.out) as made:
        folder = Path(made) / f"moiety-{version()}"
        folder.mkdir()
        fill(folder, tuple(name for name in asked.images.split(",") if name))
        sum_up(folder)
        archive(folder, path)
    sys.stdout.write(f"{path} {path.stat().st_size / 1e6:.0f} MB, SHA-256 {_sha256(path)}\n")


if __name__ == "__main__":
    main()
