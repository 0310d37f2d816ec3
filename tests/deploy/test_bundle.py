"""The archive for machines without a network: what it is made of, and an installation from it without one."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy import bundle
from deploy.lock import EXTRAS, lock
from deploy.requirements import requirements
from tests.deploy.containers import attempt

ROOT = Path(__file__).parents[2]
MADE = "MOIETY_TEST_BUNDLE"
"""An archive that is there already, to be installed in place of one that is made first."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_names_every_requirement_with_a_hash_and_no_index() -> None:
    names = {canonical(name): number for name, number, _ in bundle.locked()}
    wanted = requirements(ROOT / "pyproject.toml", list(EXTRAS))
    found = {canonical(match[0]) for one in wanted if (match := re.match(r"[A-Za-z0-9._-]+", one))}
    assert found - names.keys() == set(), "make lock"
    assert len(names) == len(bundle.locked())
    text = bundle.LOCK.read_text(encoding="utf-8")
    assert "//" not in text
    assert text.startswith("# Python 3.11, Linux x86_64; ")
    for one in wanted:
        pinned = re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)", one)
        if pinned is not None:
            assert names[canonical(pinned[1])].split("+")[0] == pinned[2], "make lock"


def lines_of(*extras: str, lock: str = "deploy/lock.txt") -> subprocess.CompletedProcess[str]:
    """The arguments that an image's build passes to pip."""
    return attempt(sys.executable, "deploy/requirements.py", "--locked", lock, *extras, cwd=ROOT)


def names_in(*extras: str, lock: str = "deploy/lock.txt") -> set[str]:
    done = lines_of(*extras, lock=lock)
    if done.returncode != 0 and ", this is Python" in done.stderr:
        pytest.skip(f"NOT TESTED: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(bundle._LOCKED.match(line) for line in lines)
    return {canonical(line.split("==")[0]) for line in lines}


@pytest.mark.parametrize("extras", [("server", "page", "he"), ("agent", "he", "sql", "postgres"), ("server", "scale")])
def test_an_image_takes_the_locks_packages_and_lacks_none(extras: tuple[str, ...]) -> None:
    """Nothing resolves what --no-deps leaves out: each package's own requirements stand among the lines."""
    taken = names_in(*extras)
    wanted = {canonical(Requirement(one).name) for one in requirements(ROOT / "pyproject.toml", list(extras))}
    assert wanted <= taken
    for name in taken:
        try:
            asked = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        for one in map(Requirement, asked):
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                assert canonical(one.name) in taken, f"{name} needs {one.name}: make lock"
    assert ("torch" in taken) is ("agent" in extras)
    assert ("ray" in taken) is ("scale" in extras)


def test_the_agents_image_for_a_gpu_has_torch_with_cuda_and_the_rest_as_the_other_one() -> None:
    extras = ("agent", "he", "sql", "postgres")
    names = names_in(*extras, lock="deploy/lock-cuda.txt")
    said = (lines_of(*extras, lock=f"deploy/{name}.txt").stdout for name in ("lock", "lock-cuda"))
    plain, cuda = ([line.partition(" # ")[0] for line in one.splitlines()] for one in said)
    assert {"torch", "triton", "nvidia-cublas", "nvidia-cudnn-cu13"} <= names
    assert {canonical(line.split("==")[0]) for line in set(plain) - set(cuda)} <= {"torch"}
    (torch,) = [line for line in cuda if line.startswith("torch==")]
    assert "+cpu" not in torch


def test_a_lock_of_another_machine_or_without_an_extra_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "lock.txt"
    other.write_text("# Python 2.7, Plan9 vax; made by hand\nx==1 --hash=sha256:00 # base\n")
    done = lines_of(lock=str(other))
    assert done.returncode == 1
    assert "is of Python 2.7, Plan9 vax, this is Python" in done.stderr
    names_in("server")
    assert "has nothing of extra 'other': make it anew (make lock)" in lines_of("other").stderr


def test_the_lock_is_closed_over_markers_and_extras() -> None:
    def package(name: str, *requires: str) -> dict[str, object]:
        said = {"name": name, "version": "1", "requires_dist": list(requires)}
        return {"metadata": said, "download_info": {"archive_info": {"hashes": {"sha256": name}}}}

    found = [
        package("a", "B_b[more]>=1", "never; python_version < '3'"),
        package("b-b", "c; extra == 'more'", "d; extra == 'less'"),
        package("c", "a"),
        package("e"),
    ]
    assert lock(found, {"base": ["e"], "one": ["a"]}).splitlines()[1:] == [
        "a==1 --hash=sha256:a # one",
        "b-b==1 --hash=sha256:b-b # one",
        "c==1 --hash=sha256:c # one",
        "e==1 --hash=sha256:e # base",
    ]


def test_a_line_without_a_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "lock.txt"
    other.write_text("numpy==2.0 # base\n")
    monkeypatch.setattr(bundle, "LOCK", other)
    with pytest.raises(ValueError, match="is no package with its hash"):
        bundle.locked()


def test_the_bill_of_materials_is_the_lock() -> None:
    said = bundle.bill_of_materials("1.2.3")
    assert said["metadata"]["component"]["version"] == "1.2.3"
    listed = {(one["name"], one["version"], one["hashes"][0]["content"]) for one in said["components"]}
    assert listed == set(bundle.locked())


def test_every_module_is_in_the_archive(tmp_path: Path) -> None:
    bundle.copy_project(tmp_path)
    for package in ("protocol", "host", "servers", "client_agent", "harness"):
        modules = {path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")}
        assert modules == {path.relative_to(tmp_path) for path in (tmp_path / package).rglob("*.py")}
    assert (tmp_path / "deploy" / "install_bundle.sh").exists()
    assert not list(tmp_path.rglob("*.whl"))


def test_the_same_content_is_the_same_archive(tmp_path: Path) -> None:
    digests: list[str] = []
    for place in ("one", "two"):
        folder = tmp_path / place / "moiety-1"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").write_text("content")
        (folder / "install.sh").write_text("#!/bin/sh\n")
        os.utime(folder / "install.sh", (len(digests), len(digests)))
        bundle.sum_up(folder)
        bundle.archive(folder, tmp_path / f"{place}.tar")
        digests.append(hashlib.sha256((tmp_path / f"{place}.tar").read_bytes()).hexdigest())
    assert digests[0] == digests[1]
    with tarfile.open(tmp_path / "one.tar") as made:
        assert {info.name for info in made} >= {"moiety-1/deep/file", "moiety-1/SHA256SUMS"}


def test_an_archive_with_a_changed_file_is_not_installed(tmp_path: Path) -> None:
    folder = tmp_path / "moiety-1"
    folder.mkdir()
    shutil.copy(ROOT / "deploy" / "install_bundle.sh", folder / "install.sh")
    (folder / "wheel").write_text("as it was")
    bundle.sum_up(folder)
    (folder / "wheel").write_text("as it is")
    done = attempt("sh", str(folder / "install.sh"), str(tmp_path / "target"))
    assert done.returncode != 0
    assert "wheel: FAILED" in done.stdout
    assert not (tmp_path / "target").exists()
    usage = attempt("sh", str(folder / "install.sh"))
    assert (usage.returncode, usage.stderr) == (2, "usage: sh install.sh FOLDER, such as /opt/moiety\n")


def without_network() -> tuple[str, ...]:
    """A namespace with a loopback that is down, where this machine lets us make one."""
    command = ("unshare", "--user", "--map-root-user", "--net")
    if shutil.which("unshare") is None or subprocess.run((*command, "true"), check=False).returncode != 0:
        pytest.skip("NOT TESTED: no network namespace can be made here, so nothing was installed without a network")
    return command


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_an_installation_without_a_network_runs_whole_studies(tmp_path: Path) -> None:
    """The archive is made (half a gigabyte), installed where nothing can be reached, and studies run in memory."""
    alone = without_network()
    made = os.environ.get(MADE)
    if made is None:
        command = (sys.executable, str(ROOT / "deploy" / "bundle.py"), "--out", str(tmp_path))
        made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()[0]
    with tarfile.open(made) as kept:
        kept.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.glob("moiety-*/")
    target = tmp_path / "target"
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}

    def run(*command: str) -> str:
        done = attempt(*alone, *command, within_s=1500, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    installed = run("sh", str(folder / "install.sh"), str(target))
    assert installed.splitlines()[-1].startswith(f"moiety {bundle.version()}, protocol ")
    assert "No broken requirements found." in installed
    program = str(target / "bin" / "moiety")
    reach = (*alone, sys.executable, "-c", "import socket; socket.create_connection(('192.0.2.1', 80), 1)")
    assert "unreachable" in attempt(*reach).stderr
    run(program, "lab", "faults", "--seeds", "0", "--out", str(tmp_path / "faults.json"))
    assert (tmp_path / "faults.json").exists()
