"""The units for machines without containers: systemd finds no fault in them, and they are confined."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.containers import attempt
from tests.documents.walk import Walk

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
NAMES = ("moiety-server", "moiety-agent")
WORST_EXPOSURE = 2.0
"""The exposure, out of 10 by systemd-analyze: units that must listen or call, and compile kernels, cannot come to 0."""


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
    done = attempt(analyze(), "verify", "--man=no", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_units_are_little_exposed(unit: Path) -> None:
    done = attempt(analyze(), "security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= WORST_EXPOSURE


def test_what_the_page_says_installs_and_enables_the_unit(tmp_path: Path) -> None:
    """Into a folder in the place of a machine: no system's manager is there to be told."""
    if shutil.which("systemd-sysusers") is None or os.geteuid() != 0:
        pytest.skip("NOT TESTED: needs systemd-sysusers, and root")
    for place in ("etc/sysusers.d", "etc/systemd/system"):
        (tmp_path / place).mkdir(parents=True)
    walk, there = Walk(("docs/operating.md",)), {" /etc/": f" {tmp_path}/etc/"}

    def typed(begins: str, put: dict[str, str]) -> None:
        line = walk.line(begins, there | put)
        subprocess.run(["bash", "-ec", line], cwd=UNITS.parents[1], check=True, capture_output=True, timeout=60)

    typed("cp deploy/systemd/moiety.sysusers", {"&& systemd-sysusers": f"&& systemd-sysusers --root={tmp_path}"})
    typed("cp deploy/systemd/moiety-server.service", {"systemctl daemon-reload": "true"})
    (user,) = [line for line in (tmp_path / "etc/passwd").read_text().splitlines() if line.startswith("moiety-server:")]
    uid, gid, home, shell = *user.split(":")[2:4], *user.split(":")[5:]
    assert int(uid) > 0
    assert shell.endswith("nologin"), (home, shell)
    typed("install -d -o moiety-server", {"moiety-server": uid, f"-g {uid}": f"-g {gid}"})
    settings = (tmp_path / "etc/moiety").stat()
    assert (settings.st_uid, settings.st_mode & 0o777) == (int(uid), 0o700)
    typed("systemctl enable", {"systemctl enable --now": f"systemctl --root={tmp_path} enable"})
    assert (tmp_path / "etc/systemd/system/multi-user.target.wants/moiety-server.service").is_symlink()


@pytest.mark.parametrize("name", NAMES)
def test_nobody_is_root_and_a_drained_server_stays_down(name: str) -> None:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(UNITS / f"{name}.service", encoding="utf-8")
    service = parsed["Service"]
    assert service["User"] == service["Group"] == service["StateDirectory"] == name
    assert f"u {name} " in (UNITS / "moiety.sysusers").read_text(encoding="utf-8")
    assert "Documentation" not in parsed["Unit"]  # an installation of the bundle holds no documents
    kind = name.removeprefix("moiety-")
    assert service["ExecStart"] == f"/opt/moiety/bin/moiety {kind} run --config /etc/moiety/settings.toml"
    assert service["Restart"] == ("on-failure" if kind == "server" else "always")
    assert service["CapabilityBoundingSet"] == ""
    assert (service["ProtectSystem"], service["NoNewPrivileges"], service["UMask"]) == ("strict", "yes", "0077")
