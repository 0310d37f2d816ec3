"""Sealed bodies as whoever holds the key reads them in memory, whatever the header says."""

from __future__ import annotations

from typing import TypeVar

from protocol.bodies import sealed
from protocol.wire.channel.sealing import SealedReader
from protocol.wire.keys import SealingKey
from protocol.wire.message import Message

H = TypeVar("H", bound=Message)


def opened(body: bytes, key: SealingKey, form: type[H]) -> tuple[H, bytes]:
    """The header and the content of a body. Raises: BrokenSeal, MalformedMessage"""
    reader = SealedReader(key)
    content = b"".join(sealed.opened(reader, [body]))
    return form.parse(reader.header or b""), content
