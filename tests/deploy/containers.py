"""The demonstration's containers, started and removed by a test; skips loudly where that cannot be."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.needed import BESIDE_BASE, COMPOSE, LOCAL_BASE, works

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "deploy" / "compose.demo.yaml"
STATE = "/var/lib/moiety"
ASKED = "MOIETY_TEST_DEPLOY"
BUILT = "MOIETY_IMAGES_BUILT"


def attempt(*command: str, within_s: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command that may fail."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=within_s, **options)


def run(*command: str, environment: dict[str, str] | None = None, within_s: float = 300) -> str:
    """Standard output; fails with both outputs when the command does."""
    done = attempt(*command, within_s=within_s, cwd=ROOT, env=os.environ | (environment or {}))
    assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def compose_command() -> tuple[str, ...]:
    """``docker compose`` or ``docker-compose``; skips where neither or no engine is there, or nobody asked."""
    if os.environ.get(ASKED) != "1":
        pytest.skip(f"builds images, which takes minutes: run 'make test-deploy' (or set {ASKED}=1)")
    if not works("docker", "info"):
        pytest.skip("NOT TESTED: no container engine runs here ('docker info' fails); start one and repeat")
    for command in COMPOSE:
        if works(*command, "version"):
            return command
    pytest.skip("NOT TESTED: neither 'docker compose' nor 'docker-compose' is installed")


@functools.cache
def build_images() -> None:
    """Both images, from $BASE_IMAGE or from a base that is made here of the distribution's packages; none with
    MOIETY_IMAGES_BUILT=1, which says that moiety-server:local and moiety-agent:local are those to be tested.
    """
    if os.environ.get(BUILT) == "1":
        return
    base = os.environ.get("BASE_IMAGE") or _local_base()
    wheels = ROOT / "deploy" / "wheels"
    if base == LOCAL_BASE and not list(wheels.glob("*.whl")):
        run("sh", "deploy/fetch_wheels.sh", environment={"PYTHON": sys.executable}, within_s=1200)
    for target in ("server", "agent"):
        tag = f"moiety-{target}:local"
        command = ("docker", "build", "-f", "deploy/Dockerfile", "--build-arg", f"BASE_IMAGE={base}")
        run(*command, "--target", target, "-t", tag, ".", within_s=1200)


@functools.cache
def images_beside() -> dict[str, str]:
    """PostgreSQL's and Caddy's for ``deploy/several``, as it asks for them: those that are named in the environment, or
    made here of the distribution's packages.
    """
    named = {name: os.environ[name] for name in ("MOIETY_POSTGRES_IMAGE", "MOIETY_CADDY_IMAGE") if name in os.environ}
    if len(named) == 2:
        return named
    if not works("docker", "image", "inspect", BESIDE_BASE):
        _require_debootstrap("MOIETY_POSTGRES_IMAGE and MOIETY_CADDY_IMAGE")
        run("sh", "deploy/make_base.sh", BESIDE_BASE, "postgresql,caddy", within_s=1200)
    made = {}
    for target in ("postgres", "caddy"):
        made[f"MOIETY_{target.upper()}_IMAGE"] = tag = f"moiety-{target}:local"
        command = ("docker", "build", "-f", "deploy/several/Dockerfile", "--target", target, "-t", tag)
        run(*command, "deploy/several", within_s=1200)
    return made


def _require_debootstrap(instead: str) -> None:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip(f"NOT TESTED: set {instead}, or run as root with debootstrap")


def _local_base() -> str:
    if not works("docker", "image", "inspect", LOCAL_BASE):
        _require_debootstrap("BASE_IMAGE to an image with Python 3.11")
        run("sh", "deploy/make_base.sh", LOCAL_BASE, within_s=1200)
    return LOCAL_BASE


@dataclass(frozen=True)
class Deployment:
    """One started compose file, the demonstration's unless told, under a project name of its own."""

    compose: tuple[str, ...]
    project: str
    folder: Path
    file: Path = COMPOSE_FILE
    environment: dict[str, str] = field(default_factory=dict)

    def _compose(self, *arguments: str) -> str:
        command = (*self.compose, "-f", str(self.file), "-p", self.project, *arguments)
        return run(*command, environment={"MOIETY_DEMO": str(self.folder), **self.environment})

    def up(self, *services: str) -> None:
        """All of them, where none is named."""
        self._compose("up", "-d", *services)

    def down(self) -> None:
        self._compose("down", "--volumes", "--remove-orphans", "--timeout", "5")

    def container(self, service: str) -> str:
        return container_of(self.project, service)

    def inspect(self, service: str) -> dict:
        return json.loads(run("docker", "inspect", self.container(service)))[0]

    def execute(self, service: str, *command: str) -> str:
        return run("docker", "exec", self.container(service), *command)

    def attempt(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Like ``execute``, for commands that may fail."""
        return attempt("docker", "exec", self.container(service), *command)

    def logs(self, service: str) -> str:
        return logs_of(self.container(service))

    def lines(self, service: str, path: str) -> list[str]:
        """The lines of a file below the state folder; none when it is not there yet."""
        done = self.attempt(service, "cat", f"{STATE}/{path}")
        return done.stdout.splitlines() if done.returncode == 0 else []

    def copy_state(self, service: str, to: Path) -> Path:
        run("docker", "cp", f"{self.container(service)}:{STATE}", str(to))
        return to


def container_of(project: str, service: str) -> str:
    """The id, whether it runs or was killed."""
    label = ("--filter", f"label=com.docker.compose.project={project}")
    found = run("docker", "ps", "-aq", *label, "--filter", f"label=com.docker.compose.service={service}").split()
    assert len(found) == 1, f"{service}: {found}"
    return found[0]


def logs_of(container: str) -> str:
    done = attempt("docker", "logs", container)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def require_no_secret(log: str, keys: str, *others: str) -> None:
    """Require that a party's log holds none of the long values of its keys' file, nor one of the others."""
    lines = [line.partition("=")[2].strip(' "') for line in keys.splitlines()]
    secrets = [value for value in lines if len(value) >= 64]
    assert len(secrets) >= 2
    assert log
    assert not [value[:8] for value in (*secrets, *others) if value in log]


def wait_until(happened: Callable[[], bool], what: str, within_s: float) -> None:
    end = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}"
        time.sleep(0.3)
