"""README's first federation by its own commands, as a person starts them: on other ports and in two rounds."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
OVER_WITHIN_S = 200.0

pytestmark = pytest.mark.slow


def blocks() -> list[str]:
    """The shell lines of the section, in order: the files, terminal 1, 2 and 3."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = re.search(r"^### Operators and sites: .*?(?=^#|^In earnest)", text, flags=re.MULTILINE | re.DOTALL)
    assert section is not None
    found = re.findall(r"```sh\n(.*?)```", section[0], flags=re.DOTALL)
    assert len(found) == 4
    return found


@contextmanager
def terminal(commands: str, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A shell that runs them; whatever it started is ended with it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MOIETY_")}
    with log.open("wb") as out:
        shell = subprocess.Popen(
            ["bash", "-ec", commands],
            cwd=folder,
            env={**clean, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield shell
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The examples on ports of this test, with two rounds, where the first block looks for them."""
    examples = tmp_path / "docs" / "examples"
    shutil.copytree(ROOT / "docs" / "examples", examples)
    operations = free_ports()
    for side, port in zip("ab", operations, strict=True):
        server = examples / f"server-{side}.toml"
        server.write_text(f"operations_port = {port}\n{server.read_text()}")
    study = examples / "first.toml"
    study.write_text(study.read_text().replace("rounds = 10", "rounds = 2").replace("list_every = 5", "list_every = 2"))
    return tmp_path


def test_the_first_federation_of_the_readme_trains_to_its_end(place: Path) -> None:
    files, servers, contributors, requester = blocks()
    ports = dict(zip(("8441", "8442"), map(str, free_ports()), strict=True))
    files = files.replace("make install && . .venv/bin/activate\n", "")
    for shown, port in ports.items():
        files = files.replace(shown, port)
        for server in (place / "docs" / "examples").glob("server-*.toml"):
            server.write_text(server.read_text().replace(shown, port))
    logs = {name: place / f"{name}.log" for name in ("files", "servers", "contributors", "requester")}
    with terminal(files, place, logs["files"]) as made:
        assert made.wait(OVER_WITHIN_S) == 0, logs["files"].read_text()
    with (
        terminal(servers + "wait", place / "try", logs["servers"]),
        terminal(contributors, place / "try", logs["contributors"]),
        terminal(requester, place / "try", logs["requester"]) as watching,
    ):
        deadline = time.monotonic() + OVER_WITHIN_S
        while watching.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        said = {name: log.read_text()[-3000:] for name, log in logs.items()}
        assert watching.poll() == 0, said
    assert "study first: completed (all rounds are done)" in said["requester"]
    models = [place / "try" / f"h{n}" / "state" / "studies" / "first" for n in range(4)]
    assert all(folder.is_dir() for folder in models)
