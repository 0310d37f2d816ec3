"""Text files that people edit: UTF-8, or the Unicode encoding that a byte-order mark at the start names."""

from __future__ import annotations

import codecs
import io
from typing import Final

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark its first two bytes are
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
MARK_BYTES: Final = 4


def marked_encoding(content: bytes) -> str:
    """The encoding that the first bytes of a file name; empty where they name none."""
    return next((encoding for mark, encoding in _MARKS if content.startswith(mark)), "")


def text_of(content: bytes) -> str:
    """The text of a file, lines ended by a newline. Raises: UnicodeError, also for zero bytes: UTF-16 without a mark"""
    marked = marked_encoding(content)
    wide = marked not in ("", "utf-8")
    text = content.decode(marked if wide else "utf-8-sig")
    if "\0" in text or (wide and not text):
        raise UnicodeDecodeError(marked or "utf-8", content, 0, len(content), "zero bytes, or a mark and nothing else")
    return io.StringIO(text, newline=None).read()
