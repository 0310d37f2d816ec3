"""One server's masked sum on its way to the other (docs/protocol.md 9).

header    which release, how many elements
content   the masked vector, 8 bytes per element, or 6 of a vector48
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.arithmetic.packing import element_bytes
from protocol.arithmetic.ring import ELEMENT_BYTES, Ring
from protocol.bodies import sealed
from protocol.errors import AnnouncementMismatch
from protocol.wire.channel.sealing import Octets, SealedMessage, SealedReader, sealed_message_length
from protocol.wire.keys import SealingKey, SealingPublicKey
from protocol.wire.peer_messages import MaskedSumHeader


def seal_masked_sum(
    header: MaskedSumHeader, content: Iterator[Octets], recipient: SealingPublicKey, secret: bytes
) -> SealedMessage:
    """The body, made while it is sent. Requires: ``secret`` as :func:`seal_body`"""
    return sealed.seal_body(header, content, recipient, secret)


def masked_sum_bytes(header: MaskedSumHeader) -> int:
    """Return the length of that body."""
    return sealed_message_length(len(header.canonical()), element_bytes(header.share_kind.ring_bits) * header.length)


def most_masked_sum_bytes(length: int) -> int:
    """The longest body of a masked sum of so many elements."""
    return sealed.most_body_bytes(ELEMENT_BYTES * length)


class MaskedSumReader:
    """Takes the peer's masked sum sealed to this server, in pieces of any size.

    Raises: AnnouncementMismatch, MalformedMessage, BrokenSeal
    """

    def __init__(self, expected: MaskedSumHeader, key: SealingKey) -> None:
        self._expected = expected
        self._reader = SealedReader(key, self._accept)
        length = expected.length
        self._elements = sealed.ElementReader(
            length,
            f"a masked sum of {length} elements was announced, more came",
            f"a masked sum has {length} elements, {{}} came",
            expected.share_kind.ring_bits,
        )

    @property
    def head(self) -> bytes:
        """Everything before the content, as far as it has come."""
        return self._reader.head

    def feed(self, data: bytes | bytearray) -> tuple[int, Ring]:
        """The elements that are ready, in one array, and where they begin."""
        return self._elements.feed(b"".join(self._reader.feed(data)))

    def last(self) -> tuple[int, Ring]:
        """The elements of the last chunk, once nothing more comes; ``finish`` then says whether that was all."""
        return self._elements.feed(self._reader.finish())

    def finish(self) -> None:
        """Raises: MalformedMessage, when elements are missing"""
        self._elements.finish()

    def _accept(self, raw: bytes) -> None:
        if MaskedSumHeader.parse(raw) != self._expected:
            raise AnnouncementMismatch("the masked sum is for another release, or of another length")
