"""Bodies as tests open and seal them: whatever the header says, with the same layout as everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from protocol.bodies import sealed
from protocol.wire.channel.sealing import SealedReader
from protocol.wire.keys import SealingKey, SealingPublicKey
from protocol.wire.message import Message

H = TypeVar("H", bound=Message)


def opened(body: bytes, key: SealingKey, form: type[H]) -> tuple[H, bytes]:
    """The header and the content of a body that is in memory."""
    reader = SealedReader(key)
    content = b"".join(sealed.opened(reader, [body]))
    return form.parse(reader.header or b""), content


def closed(header: Message, content: Sequence[bytes], recipient: SealingPublicKey) -> bytes:
    """A body in memory, under a key and a salt that everybody knows."""
    return sealed.seal(header, content, recipient, bytes(sealed.SECRET_BYTES)).whole()
