"""The units for machines without containers: systemd finds no fault in them, and they are confined."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
NAMES = ("moiety-server", "moiety-agent")
WORST_EXPOSURE = 2.0
"""Of 10, by systemd-analyze: what must listen or call, and compile kernels, cannot come to 0."""


def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("NOT TESTED: no systemd-analyze (Debian: apt-get install systemd); the units were not verified")
    return found


@pytest.fixture(params=NAMES)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """With a program that is there in place of the one that an installation puts into /opt/moiety."""
    text = (UNITS / f"{request.param}.service").read_text(encoding="utf-8")
    path = tmp_path / f"{request.param}.service"
    path.write_text(text.replace("/opt/moiety/bin/moiety", "/bin/true"), encoding="utf-8")
    return path


def test_systemd_finds_the_units_right(unit: Path) -> None:
    done = subprocess.run([analyze(), "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_units_are_little_exposed(unit: Path) -> None:
    done = subprocess.run(
        [analyze(), "security", "--offline=true", "--no-pager", str(unit)], capture_output=True, text=True, check=False
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= WORST_EXPOSURE


@pytest.mark.parametrize("name", NAMES)
def test_nobody_is_root_and_a_drained_server_stays_down(name: str) -> None:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(UNITS / f"{name}.service", encoding="utf-8")
    service = parsed["Service"]
    assert service["User"] == service["Group"] == service["StateDirectory"] == name
    assert f"u {name} " in (UNITS / "moiety.sysusers").read_text(encoding="utf-8")
    kind = name.removeprefix("moiety-")
    assert service["ExecStart"] == f"/opt/moiety/bin/moiety {kind} run --config /etc/moiety/settings.toml"
    assert service["Restart"] == ("on-failure" if kind == "server" else "always")
    assert service["CapabilityBoundingSet"] == ""
    assert (service["ProtectSystem"], service["NoNewPrivileges"], service["UMask"]) == ("strict", "yes", "0077")
