"""Sealed bodies: a public header, and behind its seal content of a known length (docs/protocol.md 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeVar

from protocol.arithmetic.packing import element_bytes, unpacked
from protocol.arithmetic.ring import Ring
from protocol.errors import MalformedMessage
from protocol.parameters import WORD_BITS, RingBits
from protocol.wire.channel.sealing import (
    CONTENT_KEY_BYTES,
    MAX_HEADER_BYTES,
    SALT_BYTES,
    Octets,
    SealedMessage,
    SealedReader,
    seal_message,
    sealed_message_length,
)
from protocol.wire.keys import SealingPublicKey
from protocol.wire.message import Message

H = TypeVar("H", bound=Message)

SECRET_BYTES: Final = CONTENT_KEY_BYTES + SALT_BYTES


class Expected(Protocol[H]):
    """The expected form of a body: its header, and the bytes of content behind it."""

    def require(self, raw: bytes) -> H:
        """The header that came. Raises: what says how it differs"""
        ...

    def content_bytes(self, header: H) -> int: ...


def seal_body(header: Message, content: Iterable[Octets], recipient: SealingPublicKey, secret: bytes) -> SealedMessage:
    """Seal ``content`` under ``header``, piece by piece.

    Requires: ``secret`` holds a content key and a salt, 64 fresh random bytes used for this message alone
    """
    content_key, salt = secret[:CONTENT_KEY_BYTES], secret[CONTENT_KEY_BYTES:]
    return seal_message(header.canonical(), content, recipient, content_key, salt)


def most_body_bytes(content_bytes: int) -> int:
    """The longest sealed message with so much content, whatever its header."""
    return sealed_message_length(MAX_HEADER_BYTES, content_bytes)


def open_body(reader: SealedReader, pieces: Iterable[Octets]) -> Iterator[bytes]:
    """The content, piece by piece; the last piece once the end is authentic. Raises: as ``SealedReader``"""
    for data in pieces:
        yield from reader.feed(data)
    yield reader.finish()


class ElementReader:
    """A vector's bytes in pieces of any size, handed on as whole elements, each piece with its place.

    ``longer`` is said when more than ``length`` elements come; ``shorter`` when fewer do: ``{}`` is how many did. The
    ring of ``bits`` says how many bytes an element has.

    Raises: MalformedMessage
    """

    def __init__(self, length: int, longer: str, shorter: str, bits: RingBits = WORD_BITS) -> None:
        self._length = length
        self._bits = bits
        self._longer = longer
        self._shorter = shorter
        self._held = b""
        self._done = 0

    def feed(self, data: Octets) -> tuple[int, Ring]:
        """The next elements and where they begin; the array is read-only and may be empty."""
        view, start = memoryview(self._held + data if self._held else data), self._done
        size = element_bytes(self._bits)
        count = len(view) // size
        if start + count > self._length:
            raise MalformedMessage(self._longer)
        self._held = bytes(view[count * size :])
        self._done += count
        return start, unpacked(view[: count * size], count, self._bits)

    def finish(self) -> None:
        """Say that nothing more comes."""
        if self._held or self._done != self._length:
            raise MalformedMessage(self._shorter.format(self._done))
