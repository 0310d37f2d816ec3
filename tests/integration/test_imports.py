"""No process imports what it does not need; each check runs in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def python(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def loaded_by(program: str) -> set[str]:
    done = python(program + "\nimport sys\nprint(' '.join(sorted({m.split('.')[0] for m in sys.modules})))")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def subcommand(name: str) -> str:
    """Everything that ``moiety NAME`` loads before it runs anything."""
    return f"import moiety; moiety.build({name!r})"


def test_a_server_loads_neither_torch_nor_harness_nor_agent() -> None:
    loaded = loaded_by(subcommand("server") + "\nimport servers.app, servers.rounds.side_a")
    assert "fastapi" in loaded
    assert not loaded & {"torch", "safetensors", "sklearn", "matplotlib", "trustme", "harness", "client_agent"}


def test_an_agent_loads_neither_harness_nor_servers() -> None:
    loaded = loaded_by(subcommand("agent") + "\nimport client_agent.daemon, client_agent.learning.trainer")
    assert "torch" in loaded
    assert not loaded & {"fastapi", "sqlalchemy", "alembic", "sklearn", "matplotlib", "trustme", "harness", "servers"}


def test_the_roster_loads_neither_torch_nor_a_server() -> None:
    loaded = loaded_by(subcommand("roster"))
    assert not loaded & {"torch", "fastapi", "sqlalchemy", "harness", "servers"}


def test_the_list_of_subcommands_loads_none_of_them() -> None:
    loaded = loaded_by("import moiety; moiety.build(None)")
    assert not loaded & {"torch", "fastapi", "sqlalchemy", "harness", "servers", "client_agent", "numpy"}


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [("server", "fastapi", "server"), ("agent", "httpx", None), ("demo", "trustme", "harness")],
)
def test_a_missing_package_is_named_with_its_extra(command: str, missing: str, extra: str | None) -> None:
    program = BLOCKED.format(blocked={missing})
    arguments = ["demo", "--quick"] if command == "demo" else [command, "run", "--config", "/nonexistent.toml"]
    done = python(program + f"import moiety; moiety.main({arguments!r})")
    if extra is None:
        assert done.returncode != 0
        assert "ModuleNotFoundError" in done.stderr
    else:
        assert done.returncode == 2, done.stderr
        assert f"pip install 'moiety[{extra}]'" in done.stderr
        assert "Traceback" not in done.stderr
