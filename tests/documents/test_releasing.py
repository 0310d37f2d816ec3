"""docs/releasing.md as it stands there: a release made, signed and checked; one that was changed is not taken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.lines import ROOT
from tests.documents.walk import Walk

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_release_is_made_signed_and_checked(tmp_path: Path) -> None:
    walk = Walk(["docs/releasing.md"], ["python -m pip wheel"])  # the build itself needs a package index
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "moiety.whl").write_bytes(b"a wheel")
    assert typed("ssh-keygen -q -t ed25519 -N '' -f signing_key", tmp_path).returncode == 0
    public = (tmp_path / "signing_key.pub").read_text()
    (tmp_path / "allowed_signers").write_text(f"releases@example.org {public}")
    for begins in ("moiety licences", "cd release && sha256sum *", "ssh-keygen -Y sign"):
        done = typed(walk.line(begins), tmp_path)
        assert done.returncode == 0, done.stderr
    checks = [walk.line("ssh-keygen -Y verify"), walk.line("cd release && sha256sum --check")]
    assert walk.left() == []
    assert [typed(line, tmp_path).returncode for line in checks] == [0, 0]

    (tmp_path / "release" / "moiety.whl").write_bytes(b"another")
    assert [typed(line, tmp_path).returncode for line in checks] == [0, 1]
    sums = tmp_path / "release" / "SHA256SUMS"
    sums.write_text(sums.read_text().replace("a", "b"))
    assert typed(checks[0], tmp_path).returncode != 0
