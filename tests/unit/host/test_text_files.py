"""Settings, rosters, invitations and secrets in the encodings that editors save text in."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from host.files import marked_encoding, read_secret
from host.settings import read_text
from protocol.errors import ConfigurationError

TEXT = "größe = 1\n# an end\n"


@pytest.mark.parametrize(
    ("content", "marked"),
    [
        (TEXT.encode(), ""),
        (codecs.BOM_UTF8 + TEXT.replace("\n", "\r\n").encode(), "utf-8"),
        (codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"), "utf-16"),
        (codecs.BOM_UTF16_BE + TEXT.replace("\n", "\r").encode("utf-16-be"), "utf-16"),
        (codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"), "utf-32"),
        (codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be"), "utf-32"),
    ],
)
def test_a_mark_says_how_a_text_is_written(tmp_path: Path, content: bytes, marked: str) -> None:
    path = tmp_path / "file"
    path.touch(mode=0o600)
    path.write_bytes(content)
    assert (read_text(path), read_secret(path), marked_encoding(content)) == (TEXT, TEXT, marked)


@pytest.mark.parametrize("content", [TEXT.encode("latin-1"), TEXT.encode("utf-16-le"), codecs.BOM_UTF16_LE + b"a"])
def test_what_has_no_mark_is_utf_8_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.touch(mode=0o600)
    path.write_bytes(content)
    for read in (read_text, read_secret):
        with pytest.raises(ConfigurationError, match=r"it is not text in UTF-8: .* save it as UTF-8"):
            read(path)
