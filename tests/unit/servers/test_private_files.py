"""What a server keeps is its user's alone, whatever was there before; a key that others may read is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from harness.federation.processes import write_secret
from host.files import private_folder, read_secret
from protocol.errors import ConfigurationError
from protocol.sharing import Side
from servers.server import open_server
from servers.settings import load_settings
from tests.kit.processes import prepare_servers

SITES = ("hospital-0", "hospital-1", "hospital-2", "hospital-3")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return prepare_servers(tmp_path, SITES).servers[Side.B].config


def test_a_folder_and_a_database_that_were_there_before_are_taken_back(config: Path) -> None:
    data = config.with_name("data")
    data.mkdir()
    data.chmod(0o755)
    (data / "server.db").touch()
    (data / "server.db").chmod(0o644)
    before = os.umask(0o022)
    try:
        server = open_server(load_settings(config))
    finally:
        os.umask(before)
    assert mode(data) == 0o700
    assert {mode(path) for path in data.glob("server.db*")} == {0o600}
    server.store.close()
    server.ckks.close()


@pytest.mark.parametrize("wrong", [0o640, 0o604, 0o660, 0o444])
def test_a_key_that_others_may_read_is_refused(config: Path, wrong: int) -> None:
    keys = config.with_name("keys.toml")
    keys.chmod(wrong)
    with pytest.raises(ConfigurationError, match=rf"mode {wrong:04o}\): chmod 600 .*keys\.toml") as caught:
        open_server(load_settings(config))
    assert "key =" not in caught.value.detail


@pytest.mark.parametrize(
    ("owner", "user", "wrong", "taken"),
    [
        (0, 10001, 0o440, True),
        (0, 10001, 0o640, True),
        (0, 10001, 0o660, False),
        (0, 10001, 0o444, False),
        (0, 0, 0o440, False),
        (10001, 10001, 0o440, False),
        (10002, 10001, 0o440, False),
    ],
)
def test_root_may_lend_a_secret_through_its_group(
    owner: int, user: int, wrong: int, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kubernetes mounts secrets for whom a pod runs as: root's, with the pod's group."""
    write_secret(tmp_path / "secret", "words")
    (tmp_path / "secret").chmod(wrong)
    asked = os.fstat
    monkeypatch.setattr(
        os, "fstat", lambda handle: os.stat_result((*asked(handle)[:4], owner, user, *asked(handle)[6:]))
    )
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if taken:
        assert read_secret(tmp_path / "secret") == "words"
    else:
        with pytest.raises(ConfigurationError, match="others than its owner may use this secret"):
            read_secret(tmp_path / "secret")


def test_a_secret_of_ones_own_is_read(tmp_path: Path) -> None:
    write_secret(tmp_path / "secret", "words")
    assert read_secret(tmp_path / "secret") == "words"


def test_a_folder_that_cannot_be_ones_own_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file: cannot be made this user's alone.*chmod 700"):
        private_folder(tmp_path / "file")
