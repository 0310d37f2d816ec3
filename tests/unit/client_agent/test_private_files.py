"""An agent's state is its user's alone, whatever was there before; a key that others may read is refused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from client_agent.site.connections import Site
from client_agent.site.identity import load_identity
from host.files import private_folder, read_secret
from protocol.errors import ConfigurationError
from tests.unit.client_agent.test_daemon import settings


def test_a_state_folder_that_was_there_before_is_taken_back(tmp_path: Path) -> None:
    made = settings(tmp_path, "c1")
    made.state_dir.mkdir()
    made.state_dir.chmod(0o755)
    with Site(made):
        assert stat.S_IMODE(made.state_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    made = settings(tmp_path, "c1")
    made.keys.chmod(mode)
    with pytest.raises(ConfigurationError, match=rf"mode {mode:04o}\): chmod 600 .*keys\.toml"):
        load_identity(made)


def test_a_key_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_secret(tmp_path / "keys")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_secret(tmp_path / "missing")


def test_a_folder_that_cannot_be_ones_own_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file: cannot be made this user's alone.*chmod 700"):
        private_folder(tmp_path / "file")
