"""Letters that show nothing by their length: the content, its length in front, zeros behind (docs/protocol.md 3).

HPKE hides what a letter says and shows how long it is. So the length follows from what the relaying servers know
anyway: which fields are there, whom lists name, how many rounds were skipped. No number shows in the compact form
(protocol/wire/channel/compact.py); a notice, which holds a text, is filled up inside its seal to one length.

    u32 length of the content, big-endian | content | zeros
"""

from __future__ import annotations

import json
from typing import Final

from protocol.errors import MalformedMessage

LENGTH_BYTES: Final = 4


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


def require_written_alike(length: int, expected: int, whole: bool) -> None:
    """MalformedMessage unless a letter has the length of its kind, and spells every field that its message has."""
    if length != expected or not whole:
        raise MalformedMessage(
            f"a letter has {length} bytes inside its seal, its kind and content take {expected}, with every field "
            "spelled: its sender must write and pad it like every other"
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
