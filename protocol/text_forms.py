"""Forms of text that mean the same: letters as Unicode composes them or not, and characters that nobody sees.

Names of columns and classes, categories and patients' ids come from many programs, and are compared by these forms.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_SPACES: Final = ((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x3000, 0x3000))
_WITHOUT_WIDTH: Final = ((0xAD, 0xAD), (0x180E, 0x180E), (0x2000, 0x200F), (0x2028, 0x202F), (0x205F, 0x206F))
_RANGES: Final = (*_SPACES, *_WITHOUT_WIDTH, (0xFEFF, 0xFEFF))
INVISIBLE: Final = "".join(chr(one) for first, last in _RANGES for one in range(first, last + 1))
"""Spaces, marks of direction and of byte order, characters without width: nobody sees them around a name."""


def comparable(text: str) -> str:
    """Text as it is compared: in Unicode's composed form (NFC), without spaces and invisible characters around it."""
    return unicodedata.normalize("NFC", text.strip(INVISIBLE))


def lookalike(text: str) -> str:
    """The same for texts that people may take for one another: NFKC, without capitals, spaces or underscores."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return "".join(one for one in folded if one not in INVISIBLE and one != "_")


def counted(count: int | None, noun: str) -> str:
    """A number and what it counts: 1 run, 2 runs."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
