"""A file that cannot be read is named with what to do, not with an error number."""

from __future__ import annotations

from pathlib import Path

import pytest

from host.files import read_secret, why_unreadable
from host.settings import read_text
from protocol.errors import ConfigurationError


@pytest.mark.parametrize("read", [read_text, read_secret])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("settings.toml", "there is no such file: is the folder right?"),
        ("roster.toml", "there is no such file: in a folder that 'moiety site join' made, 'moiety site status --wait"),
        ("keys.toml", "come back from a backup alone"),
        ("invitation.txt", "there is no such file: is the path right?"),
        ("folder", "it is a folder: name a file in it"),
        ("bytes.toml", "it is not text in UTF-8"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(tmp_path: Path, read: object, name: str, says: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "bytes.toml").chmod(0o600)
    with pytest.raises(ConfigurationError, match=f"{name} cannot be read: ") as refused:
        read(tmp_path / name)  # type: ignore[operator]
    assert says in refused.value.detail
    assert "Errno" not in refused.value.detail


def test_who_may_not_read_it_is_named() -> None:
    assert "user " in why_unreadable(Path("/x/keys.toml"), PermissionError(13, "Permission denied"))
    assert why_unreadable(Path("/x"), OSError(5, "Input/output error")).startswith("Input/output error: is it the ")
    assert why_unreadable(Path("/x"), OSError()).startswith("OSError: ")
