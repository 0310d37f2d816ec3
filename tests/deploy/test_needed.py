"""``make test-deploy`` and ``make soak`` say at once what is missing, and end with an error."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import needed
from tests.deploy.containers import ROOT

PROGRAMS = ("docker", "docker-compose", "debootstrap", "caddy", "kubectl", "promtool", "systemd-analyze", "ssh-keygen")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has nothing but what lies in this folder."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(needed, "_POSTGRESQL", tmp_path / "postgresql")
    for name in (*needed.IMAGES, "MOIETY_IMAGES_BUILT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def install(folder: Path, name: str, does: str = "exit 0") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{does}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("tests", list(needed.NEEDS))
def test_everything_missing_is_named(programs: Path, tests: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert needed.main(tests) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0].split()[-1] for line in said] == [
        need.what.split()[-1] for need in needed.NEEDS[tests] if need.what != "root"
    ]
    for name in (*PROGRAMS, "initdb"):
        install(programs, name)
    assert needed.main(tests) == 0
    assert not capsys.readouterr().err


def test_an_engine_without_compose_ends_it(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in PROGRAMS:
        install(programs, name)
    (programs / "docker-compose").unlink()
    install(programs, "docker", 'test "$1" != compose')
    assert needed.main("deploy") == 1
    assert capsys.readouterr().err == "make test-deploy needs Compose: apt-get install docker-compose\n"


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(("target", "tests"), [("test-deploy", "deploy"), ("soak", "soak")])
def test_make_looks_first(target: str, tests: str) -> None:
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # 'make test' runs us
    done = subprocess.run(["make", "-n", target], cwd=ROOT, env=alone, capture_output=True, text=True, check=True)
    assert f"-m tests.needed {tests}" in done.stdout.splitlines()[0]
