"""Letters that show nothing by their length: the content, its length in front, zeros behind (docs/protocol.md 3).

HPKE hides what a letter says and shows how long it is. A letter is therefore filled up, inside its seal, to a length
that follows from what the relaying servers know anyway: which fields are there, whom lists name, how many rounds were
skipped. Every number, whatever it stands for, takes the width of the widest.

    u32 length of the content, big-endian | content | zeros
"""

from __future__ import annotations

import json
from typing import Final

from protocol.errors import MalformedMessage
from protocol.wire.message import Message

LENGTH_BYTES: Final = 4
NUMBER_CHARACTERS: Final = 24
"""No 64-bit integer and no double takes more in canonical JSON."""


def shown_length(message: Message) -> int:
    """The length of a padded message: that of its canonical bytes, were every number in it the widest there is.

    Reveals: the names, texts and digests in it by their lengths, and how many entries its lists have
    Raises:  MalformedMessage, when a number is wider
    """
    return LENGTH_BYTES + _width(message.model_dump(mode="json"))


def pad(content: bytes, length: int) -> bytes:
    """``content`` as ``length`` bytes. Raises: MalformedMessage when it does not fit"""
    if LENGTH_BYTES + len(content) > length:
        raise MalformedMessage(
            f"a letter's content has {len(content)} bytes, its kind takes {length - LENGTH_BYTES}: shorten its text"
        )
    return len(content).to_bytes(LENGTH_BYTES, "big") + content + bytes(length - LENGTH_BYTES - len(content))


def unpad(padded: bytes) -> bytes:
    """The inverse of ``pad``. Raises: MalformedMessage, unless what follows the content is zeros"""
    stated = int.from_bytes(padded[:LENGTH_BYTES], "big")
    content, rest = padded[LENGTH_BYTES : LENGTH_BYTES + stated], padded[LENGTH_BYTES + stated :]
    if len(padded) < LENGTH_BYTES + stated or any(rest):
        raise MalformedMessage(
            f"a letter of {len(padded)} bytes says that its content has {stated}, and what follows must be zeros"
        )
    return content


def require_shown_length(padded: bytes, expected: int) -> None:
    """MalformedMessage unless the letter has the length that its kind and content call for."""
    if len(padded) != expected:
        raise MalformedMessage(
            f"a letter has {len(padded)} bytes inside its seal, its kind and content take {expected}: "
            "its sender must pad it like every other"
        )


def shortened(text: str, most_bytes: int) -> str:
    """The longest beginning of ``text`` that takes at most so many bytes in canonical JSON."""
    kept, size = [], 2
    for character in text:
        size += len(json.dumps(character)) - 2
        if size > most_bytes:
            break
        kept.append(character)
    return "".join(kept)


def _width(value: object) -> int:
    """Characters of the canonical JSON of ``value`` with every number, switch and absence at its widest."""
    if isinstance(value, dict):
        return 2 + sum(_width(key) + 1 + _width(entry) for key, entry in value.items()) + max(len(value) - 1, 0)
    if isinstance(value, list):
        return 2 + sum(_width(entry) for entry in value) + max(len(value) - 1, 0)
    written = json.dumps(value)
    if isinstance(value, str):
        return len(written)
    if len(written) > NUMBER_CHARACTERS:
        raise MalformedMessage(f"a number of a letter has {len(written)} characters, at most {NUMBER_CHARACTERS} fit")
    return NUMBER_CHARACTERS
