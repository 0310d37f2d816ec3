"""docs/releasing.md as it stands there: a release made, signed and checked; one that was changed is not taken."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from deploy.bundle import copy_project
from tests.documents.terminal import shell
from tests.documents.walk import Walk

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")


def test_a_release_is_made_signed_and_checked(tmp_path: Path) -> None:
    walk = Walk(["docs/releasing.md"], ["python -m pip wheel"])  # below
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "moiety.whl").write_bytes(b"a wheel")
    assert shell("ssh-keygen -q -t ed25519 -N '' -f signing_key", tmp_path).returncode == 0
    public = (tmp_path / "signing_key.pub").read_text()
    (tmp_path / "allowed_signers").write_text(f"releases@example.org {public}")
    for begins in ("moiety licences", "cd release && sha256sum *", "ssh-keygen -Y sign"):
        done = shell(walk.line(begins), tmp_path)
        assert done.returncode == 0, done.stderr
    checks = [walk.line("ssh-keygen -Y verify"), walk.line("cd release && sha256sum --check")]
    assert walk.left() == []
    assert [shell(line, tmp_path).returncode for line in checks] == [0, 0]

    (tmp_path / "release" / "moiety.whl").write_bytes(b"another")
    assert [shell(line, tmp_path).returncode for line in checks] == [0, 1]
    sums = tmp_path / "release" / "SHA256SUMS"
    sums.write_text(sums.read_text().replace("a", "b"))
    assert shell(checks[0], tmp_path).returncode != 0


@pytest.mark.soak
def test_the_releases_wheel_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the setuptools that is here in place of one from an index."""
    pytest.importorskip("setuptools", reason="NOT TESTED: no setuptools to build the release with")
    (tmp_path / "checkout").mkdir()
    copy_project(tmp_path / "checkout")
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip's way to say --no-build-isolation
    done = shell(Walk(["docs/releasing.md"]).line("python -m pip wheel"), tmp_path / "checkout")
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "checkout" / "release").iterdir()
    with zipfile.ZipFile(wheel) as held:
        names = {name.partition("/")[0] for name in held.namelist()}
        assert {"protocol", "host", "servers", "client_agent", "harness", "moiety.py"} <= names
        assert not {"tests", "deploy"} & names
