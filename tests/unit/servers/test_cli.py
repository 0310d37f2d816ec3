"""A server that cannot start says why in one line, however it is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("module", [["moiety", "server"], ["servers.cli"]], ids=" ".join)
def test_a_refused_configuration_is_one_line_with_its_code(module: list[str], tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    done = subprocess.run(
        [sys.executable, "-m", *module, "run", "--config", str(missing)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    why = "there is no such file: is the path right?"
    assert done.stderr == f"error (configuration): {missing} cannot be read: {why}\n"
